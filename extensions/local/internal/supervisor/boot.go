// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package supervisor

// Making the sandbox: OCI spec, runsc, files, gate.

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/guest"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/rootfs"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/runsc"
)

// ProgramName is the binary's name in the program directory.
const ProgramName = "sandboxer-extension-local"

// snapshotFD is where the snapshot's directory is in a runsc process.
const snapshotFD = "/proc/self/fd/3"

func (s *supervisor) boot(ctx context.Context) error {
	s.runsc = runsc.Driver{
		Root:     rootfs.PrivateRunsc,
		Log:      rootfs.PrivateLog + "/runsc.log",
		DebugLog: rootfs.PrivateLog,
		Sidecars: rootfs.PrivateProgram,
		Network:  s.config.Network,
		Overlay:  "root:dir=" + rootfs.PrivateSandbox,
		Cgroup:   s.config.Process.Group != "",
	}
	if s.config.Disk > 0 {
		s.runsc.Overlay += ",size=" + strconv.FormatInt(s.config.Disk, 10)
	}
	spec := s.config.Start.Spec
	if len(spec) == 0 {
		var err error
		if spec, err = json.Marshal(s.spec()); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(rootfs.PrivateBundle, "config.json"), spec, 0o600); err != nil {
		return err
	}
	gate, open, err := os.Pipe()
	if err != nil {
		return err
	}
	defer gate.Close()
	s.gate = open
	output, err := s.openLog()
	if err != nil {
		return err
	}
	defer output.Close()
	reports, report, err := os.Pipe()
	if err != nil {
		return err
	}
	defer report.Close()
	s.reports = reports

	verb := "run"
	if s.config.Start.Memory {
		verb = "restore"
	}
	args := []string{verb, "-detach", "-bundle=" + rootfs.PrivateBundle, "-pid-file=" + rootfs.PrivateBundle + "/pid"}
	if s.config.Start.Memory {
		args = append(args, "-image-path="+snapshotFD)
	}
	cmd := s.runsc.Command(ctx, append(args, s.config.ID)...)
	if s.snapshot != nil {
		cmd.ExtraFiles = []*os.File{s.snapshot}
	}
	// The sandbox inherits these, so they are pipes of ours and nothing that
	// anybody waits for. The init reports about the main process on the third;
	// the process itself has its output twice.
	cmd.Stdin, cmd.Stdout, cmd.Stderr = gate, output, report
	if err := s.runsc.Explain(ctx, verb, s.inNetwork(cmd.Run), nil); err != nil {
		if log := s.runsc.BootLog(); log != "" {
			err = fmt.Errorf("%w\nend of the boot log:\n%s", err, log)
		}
		return err
	}
	pid, err := os.ReadFile(rootfs.PrivateBundle + "/pid")
	if err != nil {
		return err
	}
	if s.pid, err = strconv.Atoi(strings.TrimSpace(string(pid))); err != nil {
		return err
	}
	go s.watch()
	return nil
}

// attributesTime bounds the work on the attributes of a snapshot's files.
const attributesTime = 50 * time.Second

// prepare puts files in place and opens the gate for the main process.
func (s *supervisor) prepare(ctx context.Context) error {
	if s.config.Process.Group != "" {
		// Also without a limit: the bound of a snapshot's source is in there.
		if err := s.boundPids(ctx, 0); err != nil {
			return fmt.Errorf("bound the number of processes: %w", err)
		}
	}
	if name := s.config.Start.Attributes; name != "" {
		f, err := os.Open(filepath.Join("/proc/self/fd", strconv.Itoa(int(s.snapshot.Fd())), name))
		if err != nil {
			return err
		}
		defer f.Close()
		if _, err := s.helper(ctx, attributesTime, f, "attributes-in"); err != nil {
			return fmt.Errorf("restore attributes of files: %w", err)
		}
	}
	if len(s.config.Files) > 0 {
		list, err := json.Marshal(s.config.Files)
		if err != nil {
			return err
		}
		if _, err := s.helper(ctx, 20*time.Second, bytes.NewReader(list), "place"); err != nil {
			return err
		}
		// Contents may be secret; they have no business in this process now.
		s.config.Files = nil
	}
	return s.startMain()
}

// helper runs this binary inside the sandbox as its root.
func (s *supervisor) helper(ctx context.Context, deadline time.Duration, stdin io.Reader, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	leave := s.makeRoom(ctx, helperPids)
	defer leave()
	if err := s.unsavable.Acquire(ctx, 1); err != nil {
		return nil, fmt.Errorf("helper %s in the sandbox: wait for a snapshot: %w", args[0], err)
	}
	defer s.unsavable.Release(1)
	call := s.newCall()
	defer call.remove()
	process := ociProcess{
		Args: append([]string{guest.Argv0}, args...), Cwd: "/", Env: []string{"PATH=" + defaultPath},
		Capabilities: allCapabilities(),
	}
	if err := call.write(process); err != nil {
		return nil, err
	}
	cmd := s.runsc.Command(ctx, "exec", "-process="+call.process(), "-exec-fd=3", s.config.ID)
	cmd.ExtraFiles = []*os.File{s.program}
	var out, errs bytes.Buffer
	if stdin != nil {
		cmd.Stdin = stdin
	}
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("helper %s in the sandbox: %w: %s", args[0], errors.Join(ctx.Err(), err), strings.TrimSpace(errs.String()))
	}
	return out.Bytes(), nil
}
