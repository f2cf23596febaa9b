// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/clock"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/ledger"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

const (
	// logs is how many sandboxes are in the ledger that is listed.
	logs = 10_000
	// listBound is for the whole list, checked line by line, against reading
	// and hashing the same files.
	listBound = 5
)

// ledgerList measures a listing of a large ledger.
func ledgerList(ctx context.Context, b *bench) ([]figure, error) {
	// In memory where that can be had: what is measured reads from there
	// anyway, and making it durable on a disk takes minutes.
	dir, err := os.MkdirTemp(shared(), "sandboxer-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := fillLedger(ctx, dir); err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(dir, "logs", "*", "*.jsonl"))
	if err != nil {
		return nil, err
	}
	if len(files) != logs {
		return nil, fmt.Errorf("%d logs were written, not %d", len(files), logs)
	}
	measured, err := interleave(ctx, min(b.runs, 5),
		func(ctx context.Context) (time.Duration, error) {
			return timed(func() error {
				records, unreadable, err := ledger.New(dir, clock.System{}).List(ctx, ledger.Filter{})
				if err == nil && (len(records) != logs || len(unreadable) > 0) {
					err = fmt.Errorf("%d records, unreadable: %v", len(records), unreadable)
				}
				return err
			})
		},
		func(context.Context) (time.Duration, error) {
			return timed(func() error { return readAndHash(files) })
		})
	if err != nil {
		return nil, err
	}
	return []figure{ratio(fmt.Sprintf("list of a ledger of %d, against reading and hashing its files", logs), listBound, measured[0], measured[1])}, nil
}

// shared returns the folder of the system's shared memory; empty where there
// is none, which is the temporary folder to [os.MkdirTemp].
func shared() string {
	const folder = "/dev/shm"
	if info, err := os.Stat(folder); err != nil || !info.IsDir() {
		return ""
	}
	return folder
}

// fillLedger appends the events of an ordinary life for each sandbox: a line
// each for intent, creation, readiness and an extension.
func fillLedger(ctx context.Context, dir string) error {
	l := ledger.New(dir, clock.System{})
	profile := sdk.Profile{
		Name: "e2e", Image: "registry.example/app@sha256:0123456789abcdef", Command: []string{"/app/serve", "--port", "8080"},
		Env: map[string]string{"STAGE": "e2e"}, Setup: [][]string{{"/app/migrate"}, {"/app/seed"}}, Ports: map[string]int{"web": 8080},
	}
	now := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(64)
	for range logs {
		id := sandbox.NewID(now)
		group.Go(func() error {
			lease := &sdk.Lease{ExpiresAt: now.Add(time.Hour), MaxExpiresAt: now.Add(time.Hour), Generation: 1}
			for _, e := range []ledger.Event{
				{Type: ledger.Intended, Backend: "local", Lease: lease, Intent: &ledger.Intent{Fleet: "bench", Profile: profile, Identity: sdk.Identity{ID: id, Fleet: "bench"}}},
				{Type: ledger.Created, Ref: "local:" + id, Lease: lease},
				{Type: ledger.Ready},
				{Type: ledger.Extended, Lease: lease},
			} {
				if _, _, err := l.Append(ctx, id, func(ledger.Record) (ledger.Event, error) { return e, nil }); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// readAndHash does to the files what anybody has to do who checks them, as
// many at a time as the ledger does.
func readAndHash(files []string) error {
	group := new(errgroup.Group)
	group.SetLimit(2 * runtime.GOMAXPROCS(0))
	for part := range slices.Chunk(files, 64) {
		group.Go(func() error {
			for _, file := range part {
				content, err := os.ReadFile(file)
				if err != nil {
					return err
				}
				for line := range strings.Lines(string(content)) {
					if sum := sha256.Sum256([]byte(line)); sum == ([sha256.Size]byte{}) {
						return errors.New("a hash of nothing but zeros")
					}
				}
			}
			return nil
		})
	}
	return group.Wait()
}
