// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/plugin/internal/fake"
)

// onFirstWrite calls a function when the command has begun to speak.
func onFirstWrite(f func()) io.Writer {
	return writerFunc(func(p []byte) (int, error) { f(); return len(p), nil })
}

func TestACancelledExecReturnsAfterTheExtensionDid(t *testing.T) {
	ext, host := pair(t)
	ext.SaveStep = t.TempDir()
	ctx, cancel := context.WithCancel(within(t))
	_, err := host.Exec(ctx, sdk.ExecOptions{Command: []string{"sleep"}, Stdout: onFirstWrite(cancel)})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
	saved(t, ext)
}

// saved fails when no save step was done. It does not wait: the call has
// returned, so the extension's method has.
func saved(t *testing.T, ext *fake.Extension) {
	t.Helper()
	probe, err := ext.Probe(t.Context(), sdk.ProbeOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, detail := range probe.Details {
		if detail.Name == "canceled" && detail.Value == "0" {
			t.Error("the call returned before the extension's method had ended")
		}
	}
}

func TestCancelReachesACommandWhoseInputIsStuck(t *testing.T) {
	ext, host := pair(t)
	ctx, cancel := context.WithCancel(within(t))
	_, err := host.Exec(ctx, sdk.ExecOptions{
		Command: []string{"sleep"}, Stdin: bytes.NewReader(random(8 << 20)), Stdout: onFirstWrite(cancel),
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
	saved(t, ext)
}

func TestTheCommandsTimeoutIsAResult(t *testing.T) {
	_, host := pair(t)
	result, err := host.Exec(within(t), sdk.ExecOptions{Command: []string{"sleep"}, Timeout: time.Millisecond})
	if err != nil || !result.TimedOut {
		t.Errorf("%+v %v", result, err)
	}
}

// A deadline may pass before the call has arrived on a busy machine, which
// proves nothing: then a longer one is tried.
func TestTheCallersDeadlineReachesTheExtension(t *testing.T) {
	ext, host := pair(t)
	whole := within(t)
	var arrived atomic.Bool
	for timeout := 30 * time.Millisecond; !arrived.Load(); timeout *= 2 {
		if whole.Err() != nil {
			t.Fatal("the call never arrived")
		}
		ctx, cancel := context.WithTimeout(whole, timeout)
		opts := createOptions("sbx-1")
		opts.Profile.Template = "wait"
		opts.Progress = func(sdk.Progress) { arrived.Store(true) }
		_, err := host.Create(ctx, opts)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("the error is %v", err)
		}
	}
	saved(t, ext)
}

func TestACancelledCreateTellsHowItEnded(t *testing.T) {
	for template, made := range map[string]bool{"wait": false, "wait-and-make": true} {
		t.Run(template, func(t *testing.T) {
			_, host := pair(t)
			ctx, cancel := context.WithCancel(within(t))
			opts := createOptions("sbx-1")
			opts.Profile.Template = template
			opts.Progress = func(sdk.Progress) { cancel() }
			result, err := host.Create(ctx, opts)
			switch {
			case made && (err != nil || result.Sandbox.Ref == ""):
				t.Errorf("a sandbox was made and its ref is lost: %v", err)
			case !made && (!errors.Is(err, context.Canceled) || err.Error() != "rolled back sbx-1: context canceled"):
				t.Errorf("the error is %v", err)
			}
		})
	}
}

func TestAHungCallIsBoundedByItsContext(t *testing.T) {
	c, ext := newCalls(), &fake.Extension{Release: make(chan struct{})}
	host := dial(t, &server{ext: ext, calls: c}, c, ConnectOptions{CancelGrace: 20 * time.Millisecond})
	t.Cleanup(func() { close(ext.Release) })
	ctx, cancel := context.WithCancel(within(t))
	opts := createOptions("sbx-1")
	opts.Profile.Template = "hang"
	opts.Progress = func(sdk.Progress) { cancel() }
	if _, err := host.Create(ctx, opts); !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
	ctx, cancel = context.WithCancel(within(t))
	if _, err := host.(everything).Exec(ctx, sdk.ExecOptions{Command: []string{"hang"}, Stdout: onFirstWrite(cancel)}); !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
}

func TestACallWithAnEndedContextIsNotMade(t *testing.T) {
	ext, host := pair(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, create := host.Create(ctx, createOptions("sbx-1"))
	_, get := host.Get(ctx, sdk.GetOptions{})
	_, exec := host.Exec(ctx, sdk.ExecOptions{Command: []string{"null"}})
	_, in := host.CopyIn(ctx, sdk.CopyInOptions{Archive: bytes.NewReader(nil)})
	for i, err := range []error{create, get, exec, in} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("call %d: %v", i, err)
		}
	}
	if ext.Created("sbx-1").ID != "" {
		t.Error("the extension was asked all the same")
	}
}

func TestStopCancelsCallsAndWaitsForTheirSaveStep(t *testing.T) {
	ext, c := &fake.Extension{}, newCalls()
	host := dial(t, &server{ext: ext, calls: c}, c, ConnectOptions{})
	begun, done := make(chan struct{}), make(chan error, 1)
	opts := createOptions("sbx-1")
	opts.Profile.Template = "wait"
	opts.Progress = func(p sdk.Progress) {
		if p.Phase == "boot" {
			close(begun)
		}
	}
	go func() { _, err := host.Create(within(t), opts); done <- err }()
	<-begun
	c.stop(patience)
	saved(t, ext)
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the answer to the call in flight is %v", err)
	}
	if _, err := host.Get(within(t), sdk.GetOptions{}); !errors.Is(err, sdk.ErrUnreachable) {
		t.Errorf("a call after the stop: %v", err)
	}
	c.stop(patience) // twice is once
}

func TestStopIsBoundedByItsGrace(t *testing.T) {
	c := newCalls()
	_, end, err := c.begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c.stop(time.Millisecond)
	end()
	c.stop(patience)
}
