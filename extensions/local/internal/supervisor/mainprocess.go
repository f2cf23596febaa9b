// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package supervisor

// The main process: started by the init when the gate opens.

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/initproc"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/record"
	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/rootfs"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// startMain opens the gate and returns when the main process runs and the
// init takes commands. In a copy that a memory snapshot brought back both are
// so already.
func (s *supervisor) startMain() error {
	p := s.config.Process
	if s.config.Start.Memory {
		return s.gate.Close()
	}
	_ = s.reports.SetReadDeadline(time.Now().Add(execStart))
	if report, err := readReport(s.reports, nil); err != nil {
		return fmt.Errorf("the sandbox's init said nothing: %w", err)
	} else if report.Kind != initproc.Listening {
		return errors.New("the sandbox's init takes no commands")
	}
	if len(p.Command) == 0 {
		_ = s.reports.SetReadDeadline(time.Time{})
		return s.gate.Close()
	}
	encoded, steps, err := initproc.Request{
		Args: p.Command, Env: p.Env, Workdir: p.Workdir, MakeWorkdir: true, UID: p.UID, GID: p.GID, Groups: p.Groups, Main: true,
	}.Encode()
	if err != nil {
		return &AttributeError{Path: "command", Message: err.Error()}
	}
	_, err = s.gate.Write(encoded)
	if err := errors.Join(err, s.gate.Close()); err != nil {
		return fmt.Errorf("hand the main process to the init: %w", err)
	}
	report, err := readReport(s.reports, steps)
	if err != nil {
		return fmt.Errorf("the init said nothing about the main process: %w", err)
	}
	_ = s.reports.SetReadDeadline(time.Time{})
	if report.Kind != initproc.Failed {
		return nil
	}
	switch report.Step {
	case stepCommand:
		return &AttributeError{Path: "command[0]", Message: fmt.Sprintf("%q can't be executed in the sandbox: %v", p.Command[0], report.Errno)}
	case "workdir":
		return &AttributeError{Path: "workdir", Message: fmt.Sprintf("%q can't be entered in the sandbox: %v", p.Workdir, report.Errno)}
	}
	return fmt.Errorf("start the main process: %s: %w", report.Step, report.Errno)
}

func readReport(from io.Reader, steps initproc.Steps) (initproc.Report, error) {
	data := make([]byte, initproc.ReportSize)
	if _, err := io.ReadFull(from, data); err != nil {
		return initproc.Report{}, err
	}
	return initproc.DecodeReport(data, steps)
}

// watchMain notes in the record that the main process ended, and how. The
// sandbox stays: its commands may go on without it.
func (s *supervisor) watchMain() {
	defer s.reports.Close()
	report, err := readReport(s.reports, nil)
	if err != nil || report.Kind != initproc.Ended {
		return
	}
	_, err = record.Update(rootfs.PrivateSandbox, s.config.ID, func(r *record.Record) error {
		if r.Status == sdk.StatusReady || r.Status == sdk.StatusPaused {
			r.Reason = fmt.Sprintf("the main process ended with exit code %d", report.ExitCode())
		}
		return nil
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "record the end of the main process:", err)
	}
}
