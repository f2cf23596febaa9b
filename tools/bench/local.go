// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/tools/internal/repo"
)

// parallelCreates is how many sandboxes are made at once.
const parallelCreates = 50

// driver makes and uses sandboxes, in one of the ways in which a user does.
type driver interface {
	create(ctx context.Context) (id string, err error)
	exec(ctx context.Context, id string) error
	snapshot(ctx context.Context, id string) (snapshotID string, err error)
	restore(ctx context.Context, snapshotID string) (id string, err error)
	destroy(ctx context.Context, id string) error
	deleteSnapshot(ctx context.Context, snapshotID string) error
}

// local compares the embedded backend with plain runsc on the same root
// filesystem, twice: as Terraform drives it, with one process of ours that is
// open for many sandboxes (ledger, wire and supervisor are in the number), and
// as the command line drives it, where two processes of ours start and end
// for each verb. The bounds are the backend's; of the command line it is told
// what it costs.
func local(ctx context.Context, b *bench) (figures []figure, err error) {
	if os.Getuid() != 0 {
		return nil, errors.New("plain runsc, which this is compared with, needs root")
	}
	rootfs, archive, err := guestRootfs(ctx, b)
	if err != nil {
		return nil, err
	}
	base, err := newPlain(b.bin(repo.ExtensionLocal.Name), filepath.Join(b.scratch, "plain"), rootfs)
	if err != nil {
		return nil, err
	}
	profile := sdk.Profile{Name: "bench", Image: archive, Command: []string{"/guest"}}
	session, err := newSession(b.bin(repo.ExtensionLocal.Name), filepath.Join(b.scratch, "session"), profile)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, session.close()) }()
	cli, err := newProduct(b.bin(repo.CLI.Name), filepath.Dir(b.bin("x")), filepath.Join(b.scratch, "ours"), profile)
	if err != nil {
		return nil, err
	}
	for _, way := range []struct {
		name   string
		ours   driver
		bounds bounds
	}{
		{"local", session, bounds{create: 1.6, exec: 2.5, fork: 1.5}},
		{"cli", cli, bounds{create: told, exec: told, fork: told}},
	} {
		l := &localBench{bench: b, base: base, name: way.name, ours: way.ours, bounds: way.bounds}
		got, err := l.measure(ctx)
		if err != nil {
			return nil, err
		}
		figures = append(figures, got...)
	}
	return figures, nil
}

// bounds are those of one way.
type bounds struct{ create, exec, fork float64 }

type localBench struct {
	*bench
	base    *plain
	name    string
	ours    driver
	bounds  bounds
	ourIDs  []string
	baseIDs []string
}

func (l *localBench) measure(ctx context.Context) (figures []figure, err error) {
	defer func() { err = errors.Join(err, l.cleanUp()) }()
	for _, measure := range []func(context.Context) ([]figure, error){l.create, l.exec, l.fork, l.parallel} {
		got, err := measure(ctx)
		if err != nil {
			return nil, err
		}
		figures = append(figures, got...)
	}
	return figures, nil
}

// start makes one sandbox of ours.
func (l *localBench) start(ctx context.Context) (string, error) {
	id, err := l.ours.create(ctx)
	if err == nil {
		l.ourIDs = append(l.ourIDs, id)
	}
	return id, err
}

// startPlain makes one plain sandbox.
func (l *localBench) startPlain(ctx context.Context) (string, error) {
	id := l.base.id()
	l.baseIDs = append(l.baseIDs, id)
	return id, l.base.run(ctx, "run", "-detach", "-bundle", l.base.bundle, id)
}

// drop removes the sandboxes of one measurement, outside of the clock.
func (l *localBench) drop(ctx context.Context) error {
	for _, id := range l.ourIDs {
		if err := l.ours.destroy(ctx, id); err != nil {
			return err
		}
	}
	l.ourIDs = nil
	for _, id := range l.baseIDs {
		if err := l.base.run(ctx, "delete", "-force", id); err != nil {
			return err
		}
	}
	l.baseIDs = nil
	return nil
}

// cleanUp removes what is left when a measurement failed.
func (l *localBench) cleanUp() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return l.drop(ctx)
}

// create measures from nothing to the end of the first command.
func (l *localBench) create(ctx context.Context) ([]figure, error) {
	clocked := func(start func(context.Context) (string, error), exec func(context.Context, string) error) side {
		return func(ctx context.Context) (time.Duration, error) {
			took, err := timed(func() error {
				id, err := start(ctx)
				if err != nil {
					return err
				}
				return exec(ctx, id)
			})
			return took, errors.Join(err, l.drop(ctx))
		}
	}
	measured, err := interleave(ctx, l.runs, clocked(l.start, l.ours.exec), clocked(l.startPlain, l.execPlain))
	if err != nil {
		return nil, err
	}
	return []figure{ratio(l.name+": create to first exec", l.bounds.create, measured[0], measured[1])}, nil
}

func (l *localBench) execPlain(ctx context.Context, id string) error {
	return l.base.run(ctx, "exec", id, "/guest", "true")
}

// exec measures one command in a sandbox that is there already.
func (l *localBench) exec(ctx context.Context) ([]figure, error) {
	id, err := l.start(ctx)
	if err != nil {
		return nil, err
	}
	plainID, err := l.startPlain(ctx)
	if err != nil {
		return nil, err
	}
	measured, err := interleave(ctx, 2*l.runs,
		func(ctx context.Context) (time.Duration, error) {
			return timed(func() error { return l.ours.exec(ctx, id) })
		},
		func(ctx context.Context) (time.Duration, error) {
			return timed(func() error { return l.execPlain(ctx, plainID) })
		},
	)
	if err := errors.Join(err, l.drop(ctx)); err != nil {
		return nil, err
	}
	return []figure{ratio(l.name+": exec", l.bounds.exec, measured[0], measured[1])}, nil
}

// fork measures a copy of a live sandbox, made from a memory snapshot.
func (l *localBench) fork(ctx context.Context) ([]figure, error) {
	id, err := l.start(ctx)
	if err != nil {
		return nil, err
	}
	snapshot, err := l.ours.snapshot(ctx, id)
	if err != nil {
		return nil, err
	}
	plainID, err := l.startPlain(ctx)
	if err != nil {
		return nil, err
	}
	image := filepath.Join(l.base.dir, "image-"+l.name)
	if err := l.base.run(ctx, "checkpoint", "-leave-running", "-image-path", image, plainID); err != nil {
		return nil, err
	}
	if err := l.drop(ctx); err != nil {
		return nil, err
	}
	measured, err := interleave(ctx, l.runs,
		func(ctx context.Context) (time.Duration, error) {
			took, err := timed(func() error {
				id, err := l.ours.restore(ctx, snapshot)
				if err == nil {
					l.ourIDs = append(l.ourIDs, id)
				}
				return err
			})
			return took, errors.Join(err, l.drop(ctx))
		},
		func(ctx context.Context) (time.Duration, error) {
			id := l.base.id()
			l.baseIDs = append(l.baseIDs, id)
			took, err := timed(func() error {
				return l.base.run(ctx, "restore", "-detach", "-bundle", l.base.bundle, "-image-path", image, id)
			})
			return took, errors.Join(err, l.drop(ctx))
		},
	)
	if err != nil {
		return nil, err
	}
	if err := l.ours.deleteSnapshot(ctx, snapshot); err != nil {
		return nil, err
	}
	return []figure{ratio(l.name+": fork from memory", l.bounds.fork, measured[0], measured[1])}, nil
}

// parallel makes many sandboxes at once; none may fail.
func (l *localBench) parallel(ctx context.Context) ([]figure, error) {
	var (
		wait   sync.WaitGroup
		mu     sync.Mutex
		ids    []string
		failed []error
	)
	begin := time.Now()
	for range parallelCreates {
		wait.Go(func() {
			id, err := l.ours.create(ctx)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed = append(failed, err)
				return
			}
			ids = append(ids, id)
		})
	}
	wait.Wait()
	took := time.Since(begin)
	l.ourIDs = append(l.ourIDs, ids...)
	for _, err := range failed {
		l.note("%v", err)
	}
	if err := l.drop(ctx); err != nil {
		return nil, err
	}
	return []figure{{
		name: fmt.Sprintf(l.name+": failures of %d creates in parallel", parallelCreates), value: float64(len(failed)), bound: 0,
		detail: fmt.Sprintf("all made in %s", short(took)),
	}}, nil
}
