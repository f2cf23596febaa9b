// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build failpoints && linux

package crash

// What is there, seen without the product: the disk, the process table, the
// control groups, the state file and the ledger's lines.

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// object is a sandbox or a snapshot as it lies on the backend's disk.
type object struct {
	id       string
	fleet    string // empty when it has no record
	deadline time.Time
}

// objects returns what is in the backend's folders under a name that it does
// not call unfinished, and apart from those the unfinished.
func objects(state string) (found []object, unfinished []string, err error) {
	for folder, name := range map[string]string{"sandboxes": "record.json", "snapshots": "manifest.json"} {
		entries, err := os.ReadDir(filepath.Join(state, "local", folder))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		for _, entry := range entries {
			if strings.HasPrefix(entry.Name(), ".") || strings.HasSuffix(entry.Name(), ".partial") {
				unfinished = append(unfinished, folder+"/"+entry.Name())
				continue
			}
			var record struct {
				Identity struct {
					Fleet string `json:"fleet"`
				} `json:"identity"`
				Lease struct {
					ExpiresAt time.Time `json:"expires_at"`
				} `json:"lease"`
				ExpiresAt time.Time `json:"expires_at"` // of a snapshot
			}
			content, err := os.ReadFile(filepath.Join(state, "local", folder, entry.Name(), name))
			if err == nil {
				err = json.Unmarshal(content, &record)
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
				return nil, nil, fmt.Errorf("%s: %w", entry.Name(), err)
			}
			o := object{id: entry.Name(), fleet: record.Identity.Fleet, deadline: record.Lease.ExpiresAt}
			if folder == "snapshots" {
				o.deadline = record.ExpiresAt
			}
			found = append(found, o)
		}
	}
	return found, unfinished, nil
}

// A process of a lane, or one that names a sandbox.
type process struct {
	pid  int
	role string
	line string
}

// The programs that a strike can fall on.
const (
	roleProvider   = "provider"
	roleExtension  = "extension"
	roleSupervisor = "supervisor"
	roleOther      = "other"
)

// processes returns the living processes for which want is true of the
// command line or the environment.
func processes(want func(line, environ string) bool) []process {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var found []process
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		line, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		if err != nil || len(line) == 0 {
			continue // it ended, or is a zombie or the kernel's
		}
		environ, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "environ"))
		if err != nil || !want(string(line), string(environ)) {
			continue
		}
		name, _, _ := strings.Cut(string(line), "\x00")
		p := process{pid: pid, role: roleOther, line: strings.ReplaceAll(string(line), "\x00", " ")}
		switch base := filepath.Base(name); {
		case strings.HasPrefix(base, "terraform-provider-"):
			p.role = roleProvider
		case base == "sandboxer-extension-local":
			p.role = roleExtension
		case base == "sandboxer-supervisor":
			p.role = roleSupervisor
		}
		found = append(found, p)
	}
	return found
}

// naming returns the processes whose command line names one of the ids.
func naming(ids map[string]bool) []process {
	return processes(func(line, _ string) bool {
		for id := range ids {
			if strings.Contains(line, id) {
				return true
			}
		}
		return false
	})
}

// groups returns the control groups that name one of the ids.
func groups(ids map[string]bool) []string {
	var found []string
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil //nolint:nilerr // one that ended under our eyes
		}
		for id := range ids {
			if strings.Contains(d.Name(), id) {
				found = append(found, path)
			}
		}
		return nil
	})
	return found
}

// inState returns the ids that Terraform's state holds. A killed Terraform
// may leave an empty file, which holds none.
func inState(work string) (map[string]bool, error) {
	content, err := os.ReadFile(filepath.Join(work, "terraform.tfstate"))
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(content) == 0 {
		return map[string]bool{}, nil
	}
	if err != nil {
		return nil, err
	}
	var state struct {
		Resources []struct {
			Type      string `json:"type"`
			Instances []struct {
				Attributes struct {
					ID string `json:"id"`
				} `json:"attributes"`
			} `json:"instances"`
		} `json:"resources"`
	}
	if err := json.Unmarshal(content, &state); err != nil {
		return nil, fmt.Errorf("the state file: %w", err)
	}
	ids := map[string]bool{}
	for _, resource := range state.Resources {
		for _, instance := range resource.Instances {
			ids[instance.Attributes.ID] = true
		}
	}
	return ids, nil
}

// chain is one log of a ledger, checked.
type chain struct {
	id       string
	last     string    // type of the last event
	deadline time.Time // of the last lease
}

// closed reports whether the log says that nothing is left.
func (c chain) closed() bool {
	switch c.last {
	case "destroyed", "createfailed", "snapshotdeleted":
		return true
	case "snapshotfailed":
		return strings.HasPrefix(c.id, "snp-") // in a sandbox's log it only tells
	}
	return false
}

// chains reads every log of a ledger and checks each line against its hash,
// its sequence and the line before. What a kill has left of a last line is
// no line.
func chains(state string) ([]chain, error) {
	files, err := filepath.Glob(filepath.Join(state, "ledger", "logs", "*", "*.jsonl"))
	if err != nil {
		return nil, err
	}
	broken, err := filepath.Glob(filepath.Join(state, "ledger", "quarantine", "*"))
	if err != nil || len(broken) > 0 {
		return nil, fmt.Errorf("logs in quarantine: %v %w", broken, err)
	}
	var found []chain
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		c, err := checkChain(content)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Base(file), err)
		}
		if c.id = strings.TrimSuffix(filepath.Base(file), ".jsonl"); c.last != "" {
			found = append(found, c)
		}
	}
	return found, nil
}

func checkChain(content []byte) (chain, error) {
	var c chain
	var previous string
	for number := 1; ; number++ {
		line, rest, whole := bytes.Cut(content, []byte("\n"))
		if !whole {
			return c, nil
		}
		content = rest
		var event struct {
			Sequence int    `json:"sequence"`
			Type     string `json:"type"`
			PrevHash string `json:"prev_hash"`
			Hash     string `json:"hash"`
			Lease    *struct {
				ExpiresAt time.Time `json:"expires_at"`
			} `json:"lease"`
		}
		if err := json.Unmarshal(line, &event); err != nil {
			return c, fmt.Errorf("line %d: %w", number, err)
		}
		hashed, _, _ := bytes.Cut(line, []byte(`,"hash":"`+event.Hash))
		sum := sha256.Sum256(append(bytes.Clone(hashed), '}'))
		switch {
		case event.Hash != "sha256:"+hex.EncodeToString(sum[:]):
			return c, fmt.Errorf("line %d: its hash is not that of its content", number)
		case event.PrevHash != previous:
			return c, fmt.Errorf("line %d: it does not follow the line before", number)
		case event.Sequence != number:
			return c, fmt.Errorf("line %d: its sequence is %d", number, event.Sequence)
		}
		c.last, previous = event.Type, event.Hash
		if event.Lease != nil {
			c.deadline = event.Lease.ExpiresAt
		}
	}
}
