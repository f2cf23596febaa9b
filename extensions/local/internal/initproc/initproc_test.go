// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux && (amd64 || arm64)

package initproc_test

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/initproc"
)

// The init is an ordinary Linux program, so its rules are tested natively.
func TestInit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "init")
	if err := os.WriteFile(path, initproc.Binary(), 0o755); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name       string
		candidates []string
		command    []string
		want       string
	}{
		{"starts the first candidate that exists", []string{"/nowhere/sh", "/bin/sh"}, []string{"sh", "-c", "echo $0 $# $GREETING", "a", "b"}, "a 1 hello\n"},
		{"says when there is none", []string{"/nowhere/sh"}, []string{"sh"}, "no such command\n"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			args := initproc.Args(test.candidates, test.command, "no such command\n")
			cmd := exec.Command(path, args[1:]...)
			cmd.Env = []string{"GREETING=hello"}
			gate, _ := cmd.StdinPipe()
			read, write, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			cmd.Stdout, cmd.Stderr = write, write
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			write.Close()
			_ = read.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
			if n, err := read.Read(make([]byte, 1)); n != 0 || !os.IsTimeout(err) {
				t.Fatalf("before the gate opened: read %d bytes, %v; want a timeout", n, err)
			}
			_ = read.SetReadDeadline(time.Now().Add(10 * time.Second))
			gate.Close()
			got := make([]byte, len(test.want))
			if _, err := io.ReadFull(read, got); err != nil || string(got) != test.want {
				t.Errorf("output %q, %v; want %q", got, err, test.want)
			}
			if err := cmd.Process.Signal(syscall.Signal(0)); err != nil {
				t.Errorf("the init is gone after its command: %v", err)
			}
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
	}
}
