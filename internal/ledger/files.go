// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package ledger

// Locks between goroutines and between processes, and what makes names
// durable.

import (
	"context"
	"errors"
	"hash/maphash"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/failpoint"
)

// lockPatience bounds the wait for a log. An append holds it for one fsync.
const lockPatience = 30 * time.Second

// lockFile locks a file against other processes and gives up when the
// context ends. It asks again and again, since a wait in
// the kernel could not be called off; the pauses grow from 100 µs to 10 ms.
func lockFile(ctx context.Context, f *os.File) error {
	pause := 100 * time.Microsecond
	for {
		err := tryLock(f)
		if err == nil || !errors.Is(err, errLocked) {
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-timer.C:
		}
		pause = min(2*pause, 10*time.Millisecond)
	}
}

var errLocked = errors.New("locked")

// gate queues the goroutines of this process before they compete for a
// file's lock. Ids share a slot now and then; that costs a wait, no more.
type gate struct {
	once  sync.Once
	seed  maphash.Seed
	slots [64]chan struct{}
}

func (g *gate) enter(ctx context.Context, id string) (leave func(), err error) {
	g.once.Do(func() {
		g.seed = maphash.MakeSeed()
		for i := range g.slots {
			g.slots[i] = make(chan struct{}, 1)
		}
	})
	slot := g.slots[maphash.String(g.seed, id)%uint64(len(g.slots))]
	select {
	case slot <- struct{}{}:
		return func() { <-slot }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// makeDirs makes a directory and those above it, readable by the owner only,
// and makes the names that are new durable.
func makeDirs(dir string) error {
	if info, err := os.Stat(dir); err == nil && info.IsDir() {
		return nil
	}
	parent := filepath.Dir(dir)
	if parent != dir {
		if err := makeDirs(parent); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncDir(parent)
}

// The id of a ledger is all that is put in place so.
const (
	idWritten failpoint.Point = "ledger.id.written"
	idRenamed failpoint.Point = "ledger.id.renamed"
)

// writeDurably puts a file in place, whole or not at all.
func writeDurably(name string, content []byte) error {
	temporary := name + ".new"
	f, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := failpoint.Hit(idWritten); err != nil {
		return err
	}
	if err := os.Rename(temporary, name); err != nil {
		return err
	}
	if err := failpoint.Hit(idRenamed); err != nil {
		return err
	}
	return syncDir(filepath.Dir(name))
}
