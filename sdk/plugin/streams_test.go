// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// random is bytes in which a lost or doubled frame would show.
func random(n int) []byte {
	out := make([]byte, n)
	for i := range out {
		out[i] = byte(i*i>>7 + i>>13)
	}
	return out
}

func TestExecMovesLargeDataBothWays(t *testing.T) {
	_, host := pair(t)
	input := random(5<<20 + 7)
	var stdout, stderr bytes.Buffer
	result, err := host.Exec(within(t), sdk.ExecOptions{Command: []string{"cat"}, Stdin: iotest.OneByteReader(bytes.NewReader(input[:100])), Stdout: &stdout, Stderr: &stderr})
	if err != nil || result.ExitCode != 0 || !bytes.Equal(stdout.Bytes(), input[:100]) || stderr.String() != "end of input" {
		t.Fatalf("%+v %v, %d bytes, %q", result, err, stdout.Len(), stderr.String())
	}
	stdout.Reset()
	if _, err := host.Exec(within(t), sdk.ExecOptions{Command: []string{"cat"}, Stdin: bytes.NewReader(input), Stdout: &stdout}); err != nil || !bytes.Equal(stdout.Bytes(), input) {
		t.Fatalf("%v, %d bytes", err, stdout.Len())
	}
}

func TestExecOptionsArrive(t *testing.T) {
	_, host := pair(t)
	var out bytes.Buffer
	if _, err := host.Exec(within(t), sdk.ExecOptions{
		Target: sdk.Target{ID: "id", Fleet: "f"}, Command: []string{"where"}, User: "u", Workdir: "/w", Timeout: time.Minute, Stdout: &out,
	}); err != nil || out.String() != "u@id in /w of f for 1m0s" {
		t.Errorf("%q %v", out.String(), err)
	}
	out.Reset()
	if _, err := host.Exec(within(t), sdk.ExecOptions{Command: []string{"env", "A"}, Env: map[string]string{"A": "é"}, Stdout: &out}); err != nil || out.String() != "é" {
		t.Errorf("%q %v", out.String(), err)
	}
	result, err := host.Exec(within(t), sdk.ExecOptions{Command: []string{"exit", "137"}})
	if err != nil || result.ExitCode != 137 {
		t.Errorf("%+v %v", result, err)
	}
	// Nobody listens and nothing is sent: nil is empty, nil discards.
	if result, err := host.Exec(within(t), sdk.ExecOptions{Command: []string{"cat"}}); err != nil || result.ExitCode != 0 {
		t.Errorf("%+v %v", result, err)
	}
}

func TestStdinCanEndWhileTheCommandGoesOn(t *testing.T) {
	_, host := pair(t)
	r, w := io.Pipe()
	var out bytes.Buffer
	done := make(chan error, 1)
	go func() {
		_, err := host.Exec(within(t), sdk.ExecOptions{Command: []string{"cat"}, Stdin: r, Stdout: &out})
		done <- err
	}()
	_, _ = io.WriteString(w, "half")
	_ = w.Close()
	if err := <-done; err != nil || out.String() != "half" {
		t.Errorf("%q %v", out.String(), err)
	}
}

func TestACommandEndsWithoutItsInput(t *testing.T) {
	_, host := pair(t)
	blocked, unblock := io.Pipe()
	t.Cleanup(func() { _ = unblock.Close() })
	if _, err := host.Exec(within(t), sdk.ExecOptions{Command: []string{"null"}, Stdin: blocked}); err != nil {
		t.Error(err)
	}
	// More than flow control lets through, and nobody reads it.
	if _, err := host.Exec(within(t), sdk.ExecOptions{Command: []string{"null"}, Stdin: bytes.NewReader(random(8 << 20))}); err != nil {
		t.Error(err)
	}
}

func TestABrokenInputIsNotAnEnd(t *testing.T) {
	_, host := pair(t)
	broken := errors.New("the disk is gone")
	input := io.MultiReader(strings.NewReader("some"), iotest.ErrReader(broken))
	var stderr bytes.Buffer
	_, err := host.Exec(within(t), sdk.ExecOptions{Command: []string{"cat"}, Stdin: input, Stdout: io.Discard, Stderr: &stderr})
	if !errors.Is(err, broken) || !strings.Contains(stderr.String(), "cut off") {
		t.Errorf("the caller sees %v, the command %q", err, stderr.String())
	}
	_, err = host.CopyIn(within(t), sdk.CopyInOptions{Path: "/x", Archive: io.MultiReader(strings.NewReader("some"), iotest.ErrReader(broken))})
	if !errors.Is(err, broken) {
		t.Errorf("the caller sees %v", err)
	}
}

func TestABrokenOutputEndsTheCall(t *testing.T) {
	ext, host := pair(t)
	_ = ext
	full := errors.New("the disk is full")
	w := writerFunc(func([]byte) (int, error) { return 0, full })
	_, exec := host.Exec(within(t), sdk.ExecOptions{Command: []string{"flood", "100000000"}, Stdout: w})
	_, copyOut := host.CopyOut(within(t), sdk.CopyOutOptions{Path: "/100000000", Archive: w})
	_, logs := host.Logs(within(t), sdk.LogsOptions{Follow: true, Output: w})
	for i, err := range []error{exec, copyOut, logs} {
		if !errors.Is(err, full) {
			t.Errorf("call %d: %v", i, err)
		}
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestFramesAreBounded(t *testing.T) {
	_, host := pair(t)
	largest, total := 0, 0
	count := writerFunc(func(p []byte) (int, error) { largest = max(largest, len(p)); total += len(p); return len(p), nil })
	if _, err := host.Exec(within(t), sdk.ExecOptions{Command: []string{"flood", strconv.Itoa(3 << 20)}, Stdout: count}); err != nil {
		t.Fatal(err)
	}
	if total != 3<<20 || largest > chunkSize {
		t.Errorf("%d bytes in frames of up to %d", total, largest)
	}
}

func TestCopiesAreWholeOrFail(t *testing.T) {
	_, host := pair(t)
	in, err := host.CopyIn(within(t), sdk.CopyInOptions{Path: "/x", Archive: bytes.NewReader(random(3 << 20))})
	if err != nil || in.Bytes != 3<<20 {
		t.Errorf("%+v %v", in, err)
	}
	var archive bytes.Buffer
	out, err := host.CopyOut(within(t), sdk.CopyOutOptions{Path: "/3000001", Archive: &archive})
	if err != nil || out.Bytes != 3000001 || archive.Len() != 3000001 {
		t.Errorf("%+v %v", out, err)
	}
	if _, err := host.CopyOut(within(t), sdk.CopyOutOptions{Path: "/fail", Archive: &archive}); !errors.Is(err, sdk.ErrUnreachable) {
		t.Error(err)
	}
	// Refused while its caller still blocks on reading the archive.
	r, w := io.Pipe()
	t.Cleanup(func() { _ = w.Close() })
	go func() { _, _ = io.WriteString(w, "x") }()
	if _, err := host.CopyIn(within(t), sdk.CopyInOptions{Path: "/refuse", Archive: r}); !errors.Is(err, sdk.ErrInvalid) {
		t.Error(err)
	}
}

func TestLogsFollowUntilTheContextEnds(t *testing.T) {
	_, host := pair(t)
	ctx, cancel := context.WithCancel(within(t))
	var out bytes.Buffer
	w := writerFunc(func(p []byte) (int, error) { cancel(); return out.Write(p) })
	result, err := host.Logs(ctx, sdk.LogsOptions{Target: sdk.Target{ID: "x"}, Follow: true, Tail: 5, Output: w})
	if err != nil || out.String() != "tail 5 of x\n" || result.Bytes != int64(out.Len()) {
		t.Errorf("%q %+v %v", out.String(), result, err)
	}
}

func TestOutputAfterTheEndIsRefused(t *testing.T) {
	_, host := pair(t) // its clean-up fails when the writer goes on
	for range 20 {
		if _, err := host.Exec(within(t), sdk.ExecOptions{Command: []string{"late"}, Stdout: io.Discard}); err != nil {
			t.Fatal(err)
		}
	}
}
