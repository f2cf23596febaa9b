// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/docker/guestwire"
)

// runExec runs a command to its end and exits with its code. What the command
// leaves running goes on, below the sandbox's first process; but when the one
// who asked is gone, everything ends that the command has started.
func runExec(args []string) error {
	if len(args) < 2 {
		return errors.New("no command is named")
	}
	dir, command := args[0], args[1:]
	// Children that lose their parent become ours, so they are still found.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	input, feed, err := os.Pipe()
	if err != nil {
		return err
	}
	child, code, err := start(command, dir, []*os.File{input, os.Stdout, os.Stderr})
	if err != nil {
		if info, statErr := os.Stat(dir); dir != "" && (statErr != nil || !info.IsDir()) {
			say("workdir " + dir + " is not a directory there")
		} else {
			notStarted(command[0], err)
		}
		os.Exit(code)
	}
	_ = input.Close() // the child has its own
	go feedInput(feed)
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return err
		case pid == child.Pid:
			os.Exit(exitCode(status))
		}
	}
}

// feedInput hands the frames on. Their end without a last one is the end of
// whoever asked.
func feedInput(feed *os.File) {
	var buffer []byte
	for {
		kind, data, err := guestwire.ReadFrame(os.Stdin, buffer)
		if err != nil {
			killTrees(map[int]bool{os.Getpid(): true})
			return
		}
		buffer = data
		if kind == guestwire.FrameEnd {
			_ = feed.Close()
			continue
		}
		// A command that does not want its input is not wrong.
		_, _ = feed.Write(data)
	}
}
