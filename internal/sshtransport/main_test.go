// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package sshtransport_test

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// TestMain fails when a goroutine of the package has outlived every test,
// whose pools are all closed by then.
func TestMain(m *testing.M) {
	code := m.Run()
	if left := leaked(); left != "" {
		fmt.Fprintf(os.Stderr, "goroutines that outlived their pool:\n%s\n", left)
		code = max(code, 1)
	}
	os.Exit(code)
}

// leaked returns the stacks of goroutines that our code started or runs in,
// after giving them time to end.
func leaked() string {
	var left []string
	for range 500 {
		left = nil
		stacks := make([]byte, 8<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		for stack := range strings.SplitSeq(string(stacks), "\n\n") {
			if strings.Contains(stack, "internal/sshtransport.") || strings.Contains(stack, "x/crypto/ssh") {
				left = append(left, stack)
			}
		}
		if left == nil {
			return ""
		}
		time.Sleep(10 * time.Millisecond)
	}
	return strings.Join(left, "\n\n")
}
