// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package supervisor

// Limits that are measured: where no control group of the host holds one, the
// runtime is asked each second what the sandbox uses, and a sandbox over its
// limit is ended. That is late by up to the time between two looks.

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/record"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/rootfs"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// maxEvent bounds one line of figures.
const maxEvent = 1 << 20

// usage is what the runtime says about a sandbox, as much of it as counts.
type usage struct {
	Data struct {
		Memory struct {
			Usage struct {
				Usage int64 `json:"usage"`
			} `json:"usage"`
		} `json:"memory"`
		Pids struct {
			Current int64 `json:"current"`
		} `json:"pids"`
	} `json:"data"`
}

// measure looks until the sandbox ends or is over a limit.
func (s *supervisor) measure() {
	if s.config.SoftMemory == 0 && s.config.Pids == 0 {
		return
	}
	for {
		reason, err := s.look()
		if reason != "" {
			s.over <- reason
			return
		}
		select {
		case <-s.ended:
			return
		case <-time.After(time.Second):
			fmt.Fprintln(os.Stderr, "measure the sandbox:", err)
		}
	}
}

// look reads figures until one is over its limit or there are no more.
func (s *supervisor) look() (reason string, err error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	driver := s.runsc
	driver.DebugLog = "" // it runs for as long as the sandbox does
	cmd := driver.Command(ctx, "events", "-interval=1", s.config.ID)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, maxEvent)
	for reason == "" && lines.Scan() {
		var u usage
		if err := json.Unmarshal(lines.Bytes(), &u); err != nil {
			return "", fmt.Errorf("figures of another form: %w", err)
		}
		reason = s.config.exceeds(u, s.room.get())
	}
	cancel()
	err = cmd.Wait()
	return reason, err
}

// exceeds names the limit that a sandbox is over, when it holds some tasks
// more of ours than always.
func (c Config) exceeds(u usage, room int64) string {
	if used := u.Data.Memory.Usage.Usage; c.SoftMemory > 0 && used > c.SoftMemory {
		return MemoryExceeded(c.SoftMemory, used)
	}
	if used := u.Data.Pids.Current - c.ours() - room; c.Pids > 0 && used > c.Pids+helperPids {
		return PidsExceeded(c.Pids, used)
	}
	return ""
}

// MemoryExceeded is the reason of a sandbox's end. Without a measured value,
// in bytes, it names the limit alone.
func MemoryExceeded(limit, measured int64) string {
	return exceeded("memory", fmt.Sprintf("%.1f MiB", float64(limit)/(1<<20)), fmt.Sprintf("%.1f MiB", float64(measured)/(1<<20)), measured)
}

// PidsExceeded is the same for processes and threads.
func PidsExceeded(limit, measured int64) string {
	return exceeded("pids", fmt.Sprint(limit), fmt.Sprintf("%d processes and threads", measured), measured)
}

func exceeded(name, limit, measured string, n int64) string {
	text := fmt.Sprintf("limits.%s of %s exceeded", name, limit)
	if n > 0 {
		text += ": " + measured + " measured"
	}
	return text
}

// recordExceeded notes why we end the sandbox.
func (s *supervisor) recordExceeded(reason string) {
	_, err := record.Update(rootfs.PrivateSandbox, s.config.ID, func(r *record.Record) error {
		if r.Status == sdk.StatusReady || r.Status == sdk.StatusPaused || r.Status == sdk.StatusCreating {
			r.Status, r.Reason, r.Exceeded = sdk.StatusLost, reason, reason
		}
		return nil
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "record the end:", err)
	}
}
