// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package fake

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Crash ends the process the way an out-of-memory kill does.
func Crash() {
	fmt.Fprintln(os.Stderr, "fake: about to crash")
	if process, err := os.FindProcess(os.Getpid()); err == nil {
		_ = process.Signal(syscall.SIGKILL)
	}
	select {}
}

// Exec implements [sdk.Execer]. The commands are: cat, null (reads no input),
// exit N, flood BYTES, env NAME, where, sleep (until the context or the
// timeout ends), hang (until Release), crash, panic, late (writes after its
// end).
func (e *Extension) Exec(ctx context.Context, opts sdk.ExecOptions) (sdk.ExecResult, error) {
	if opts.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, opts.Timeout)
		defer cancel()
	}
	write := func(w io.Writer, format string, args ...any) {
		if w != nil {
			fmt.Fprintf(w, format, args...)
		}
	}
	switch opts.Command[0] {
	case "cat":
		if opts.Stdin == nil {
			return sdk.ExecResult{}, nil
		}
		if _, err := io.Copy(opts.Stdout, opts.Stdin); err != nil {
			write(opts.Stderr, "input: %v", err)
			return sdk.ExecResult{ExitCode: 1}, nil
		}
		write(opts.Stderr, "end of input")
	case "null":
	case "exit":
		code, err := strconv.Atoi(opts.Command[1])
		return sdk.ExecResult{ExitCode: code}, err
	case "flood":
		left, err := strconv.Atoi(opts.Command[1])
		if err != nil {
			return sdk.ExecResult{}, err
		}
		block := []byte(strings.Repeat("0123456789abcdef", 10_000))
		for left > 0 {
			n, err := opts.Stdout.Write(block[:min(left, len(block))])
			if err != nil {
				return sdk.ExecResult{}, err
			}
			left -= n
		}
	case "env":
		write(opts.Stdout, "%s", opts.Env[opts.Command[1]])
	case "where":
		write(opts.Stdout, "%s@%s in %s of %s for %s", opts.User, opts.Target.ID, opts.Workdir, opts.Target.Fleet, opts.Timeout)
	case "sleep":
		write(opts.Stdout, "asleep")
		<-ctx.Done()
		e.mu.Lock()
		e.canceled++
		e.save("save-step")
		e.mu.Unlock()
		if opts.Timeout > 0 && ctx.Err() == context.DeadlineExceeded {
			return sdk.ExecResult{TimedOut: true}, nil
		}
		return sdk.ExecResult{}, ctx.Err()
	case "hang":
		write(opts.Stdout, "asleep")
		<-e.Release
	case "crash":
		write(opts.Stdout, "last words")
		Crash()
	case "panic":
		go func() { panic("fake: a bug") }()
		select {}
	case "late":
		go func() {
			for {
				if _, err := opts.Stdout.Write([]byte("late")); err != nil {
					return
				}
				time.Sleep(time.Millisecond)
			}
		}()
	}
	return sdk.ExecResult{}, nil
}

// CopyIn implements [sdk.Copier]. It counts; the path "/refuse" is refused
// after the first byte.
func (e *Extension) CopyIn(_ context.Context, opts sdk.CopyInOptions) (sdk.CopyInResult, error) {
	if opts.Path == "/refuse" {
		_, _ = opts.Archive.Read(make([]byte, 1))
		return sdk.CopyInResult{}, sdk.Invalid("path", "%s is read-only", opts.Path)
	}
	n, err := io.Copy(io.Discard, opts.Archive)
	return sdk.CopyInResult{Bytes: n}, err
}

// CopyOut implements [sdk.Copier]. The path is a number of bytes, "/fail"
// fails after some.
func (e *Extension) CopyOut(_ context.Context, opts sdk.CopyOutOptions) (sdk.CopyOutResult, error) {
	if opts.Path == "/fail" {
		_, _ = io.WriteString(opts.Archive, "some")
		return sdk.CopyOutResult{}, sdk.Errorf(sdk.ErrUnreachable, "the disk went away")
	}
	size, err := strconv.ParseInt(strings.TrimPrefix(opts.Path, "/"), 10, 64)
	if err != nil {
		return sdk.CopyOutResult{}, sdk.Invalid("path", "%v", err)
	}
	n, err := io.Copy(opts.Archive, io.LimitReader(zeros{}, size))
	return sdk.CopyOutResult{Bytes: n}, err
}

// zeros is an endless input.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// Logs implements [sdk.Logger]. Following goes on until the context ends.
func (e *Extension) Logs(ctx context.Context, opts sdk.LogsOptions) (sdk.LogsResult, error) {
	n, err := fmt.Fprintf(opts.Output, "tail %d of %s\n", opts.Tail, opts.Target.ID)
	if opts.Follow && err == nil {
		<-ctx.Done()
	}
	return sdk.LogsResult{Bytes: int64(n)}, err
}

// setStatus changes a sandbox's status.
func (e *Extension) setStatus(target sdk.Target, status sdk.Status) (sdk.Sandbox, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	sandbox, err := e.find(target)
	if err != nil {
		return sdk.Sandbox{}, err
	}
	sandbox.Status = status
	e.sandboxes[sandbox.ID] = sandbox
	return sandbox, nil
}

// Pause implements [sdk.Pauser].
func (e *Extension) Pause(_ context.Context, opts sdk.PauseOptions) (sdk.PauseResult, error) {
	sandbox, err := e.setStatus(opts.Target, sdk.StatusPaused)
	return sdk.PauseResult{Sandbox: sandbox}, err
}

// Resume implements [sdk.Pauser].
func (e *Extension) Resume(_ context.Context, opts sdk.ResumeOptions) (sdk.ResumeResult, error) {
	sandbox, err := e.setStatus(opts.Target, sdk.StatusReady)
	return sdk.ResumeResult{Sandbox: sandbox}, err
}

// Prepare implements [sdk.Preparer].
func (e *Extension) Prepare(_ context.Context, opts sdk.PrepareOptions) (sdk.PrepareResult, error) {
	if opts.Progress != nil {
		opts.Progress(sdk.Progress{Phase: "pull", Message: opts.Profile.Image, Done: -1, Total: -2})
	}
	return sdk.PrepareResult{ImageDigest: "sha256:" + opts.Profile.Image}, nil
}

// Snapshot implements [sdk.Snapshotter].
func (e *Extension) Snapshot(_ context.Context, opts sdk.SnapshotOptions) (sdk.SnapshotResult, error) {
	if opts.Progress != nil {
		opts.Progress(sdk.Progress{Phase: "snapshot", Done: 5, Total: 10})
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	sandbox, err := e.find(opts.Target)
	if err != nil {
		return sdk.SnapshotResult{}, err
	}
	snapshot := sdk.Snapshot{
		ID: opts.SnapshotID, Ref: "snap-" + opts.SnapshotID, SandboxID: sandbox.ID, Kind: opts.Kind, Identity: opts.Identity,
		CreatedAt: e.now(), ExpiresAt: opts.ExpiresAt, Size: 42, Digest: "sha256:42", ContainsSecrets: true,
		Profile: sandbox.Profile, Lost: []string{"pid 7"},
	}
	e.snapshots[snapshot.ID] = snapshot
	return sdk.SnapshotResult{Snapshot: snapshot}, nil
}

// findSnapshot returns a snapshot. The lock is held.
func (e *Extension) findSnapshot(id, fleet string) (sdk.Snapshot, error) {
	snapshot, ok := e.snapshots[id]
	if !ok || snapshot.Identity.Fleet != fleet {
		return sdk.Snapshot{}, sdk.Errorf(sdk.ErrNotFound, "no snapshot %s", id)
	}
	return snapshot, nil
}

// GetSnapshot implements [sdk.Snapshotter].
func (e *Extension) GetSnapshot(_ context.Context, opts sdk.GetSnapshotOptions) (sdk.GetSnapshotResult, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	snapshot, err := e.findSnapshot(opts.SnapshotID, opts.Fleet)
	return sdk.GetSnapshotResult{Snapshot: snapshot}, err
}

// ListSnapshots implements [sdk.Snapshotter].
func (e *Extension) ListSnapshots(_ context.Context, opts sdk.ListSnapshotsOptions) (sdk.ListSnapshotsResult, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	result := sdk.ListSnapshotsResult{Incomplete: e.config["incomplete"]}
	for _, snapshot := range e.snapshots {
		if snapshot.Identity.Fleet == opts.Fleet {
			result.Snapshots = append(result.Snapshots, snapshot)
		}
	}
	return result, nil
}

// ExtendSnapshot implements [sdk.Snapshotter].
func (e *Extension) ExtendSnapshot(_ context.Context, opts sdk.ExtendSnapshotOptions) (sdk.ExtendSnapshotResult, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	snapshot, err := e.findSnapshot(opts.SnapshotID, opts.Fleet)
	if err == nil && opts.ExpiresAt.After(snapshot.ExpiresAt) {
		snapshot.ExpiresAt = opts.ExpiresAt
		e.snapshots[snapshot.ID] = snapshot
	}
	return sdk.ExtendSnapshotResult{Snapshot: snapshot}, err
}

// DeleteSnapshot implements [sdk.Snapshotter].
func (e *Extension) DeleteSnapshot(_ context.Context, opts sdk.DeleteSnapshotOptions) (sdk.DeleteSnapshotResult, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, err := e.findSnapshot(opts.SnapshotID, opts.Fleet)
	delete(e.snapshots, opts.SnapshotID)
	return sdk.DeleteSnapshotResult{Existed: err == nil}, nil
}

// Restore implements [sdk.Snapshotter].
func (e *Extension) Restore(ctx context.Context, opts sdk.RestoreOptions) (sdk.CreateResult, error) {
	e.mu.Lock()
	snapshot, err := e.findSnapshot(opts.SnapshotID, opts.Create.Identity.Fleet)
	e.mu.Unlock()
	if err != nil {
		return sdk.CreateResult{}, err
	}
	opts.Create.Profile = snapshot.Profile
	return e.Create(ctx, opts.Create)
}

// Inspect implements [sdk.Inspector]. The canary's value decides the verdict
// of one check and is not told.
func (e *Extension) Inspect(_ context.Context, opts sdk.InspectOptions) (sdk.InspectResult, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, err := e.find(opts.Target); err != nil {
		return sdk.InspectResult{}, err
	}
	verdict := sdk.VerdictFailed
	if opts.CanaryValue == "sings" {
		verdict = sdk.VerdictPassed
	}
	return sdk.InspectResult{Findings: []sdk.Finding{
		{Check: sdk.CheckSecrets, Side: sdk.SideInside, Verdict: verdict, Evidence: []string{"the file " + opts.Canary, "a second line"}},
		{Check: sdk.CheckMounts, Side: sdk.SideOutside, Verdict: sdk.VerdictUnknown, Evidence: []string{}},
	}}, nil
}
