// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2b

// What the vendor can't hold. Its metadata never changes, and a paused sandbox
// has no deadline there: so the generation of a lease, a claim, the event
// behind the last change and the deadline of a paused sandbox are kept in a
// file for each sandbox, below the state directory. Changes are made under a
// lock, so that among all who share the directory exactly one wins. Who does
// not have the file sees what the vendor has: see leaseOf.

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/clock"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// recordVersion is that of the format; a newer one is refused.
const recordVersion = 1

// The phases of a create.
const (
	phaseCreating = "creating"
	phaseReady    = "ready"
)

// record is what is kept of one sandbox.
type record struct {
	Version int       `json:"version"`
	ID      string    `json:"id"`
	Fleet   string    `json:"fleet"`
	Ref     string    `json:"ref,omitempty"` // empty until the create was answered
	Phase   string    `json:"phase"`
	Lease   sdk.Lease `json:"lease"`
	// EndsAt is the vendor's own deadline when the lease was written: another
	// one means that somebody else has changed it since.
	EndsAt time.Time `json:"ends_at"`
}

// snapshotRecord is what is kept of one snapshot.
type snapshotRecord struct {
	Version  int          `json:"version"`
	Snapshot sdk.Snapshot `json:"snapshot"`
}

type records struct {
	dir   string
	clock clock.Clock
}

// locks is how many files the locks are spread over.
const locks = 1024

// lockPause is the pause between two tries to get a lock.
const lockPause = 5 * time.Millisecond

// locked runs act while nobody else runs one for the same id.
func (r records) locked(ctx context.Context, id string, act func() error) error {
	dir := filepath.Join(r.dir, "locks")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("the records of E2B sandboxes: %w", err)
	}
	sum := sha256.Sum256([]byte(id))
	name := filepath.Join(dir, fmt.Sprintf("%03x", (int(sum[0])<<8|int(sum[1]))%locks))
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("the records of E2B sandboxes: %w", err)
	}
	defer file.Close() // ends the lock
	for {
		err := tryLock(file)
		if err == nil {
			return act()
		}
		if !errors.Is(err, errLocked) {
			return fmt.Errorf("lock %s: %w", name, err)
		}
		if err := r.clock.Sleep(ctx, lockPause); err != nil {
			return err
		}
	}
}

// errLocked means that somebody else has the lock.
var errLocked = errors.New("locked")

// file is where the record of an id is. The id has been checked by whoever
// asks for a path: it is part of a name.
func (r records) file(id string) (string, error) {
	if !sdk.IsSandboxID(id) && !sdk.IsSnapshotID(id) {
		return "", sdk.Errorf(sdk.ErrNotFound, "%.80q is no id", id)
	}
	return filepath.Join(r.dir, id+".json"), nil
}

// load reads a record into a value; found is false where there is none.
func (r records) load(id string, into any) (found bool, err error) {
	name, err := r.file(id)
	if err != nil {
		return false, err
	}
	content, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	var head struct{ Version int }
	if err := json.Unmarshal(content, &head); err != nil {
		return false, fmt.Errorf("the record %s can't be read: %w", name, err)
	}
	if head.Version > recordVersion {
		return false, fmt.Errorf("the record %s has the format %d and this program knows %d: use the newer sandboxer", name, head.Version, recordVersion)
	}
	if err := json.Unmarshal(content, into); err != nil {
		return false, fmt.Errorf("the record %s can't be read: %w", name, err)
	}
	return true, nil
}

// get returns the record of a sandbox of a fleet; nil where there is none.
func (r records) get(id, fleet string) (*record, error) {
	var kept record
	found, err := r.load(id, &kept)
	if err != nil || !found || kept.Fleet != fleet {
		return nil, err
	}
	return &kept, nil
}

// put writes a record, durable before it returns.
func (r records) put(id string, value any) error {
	name, err := r.file(id)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return err
	}
	file, err := os.CreateTemp(r.dir, ".new-")
	if err != nil {
		return err
	}
	_, err = file.Write(encode(value))
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), name)
	}
	if err != nil {
		_ = os.Remove(file.Name()) // the first error is the one to show
		return fmt.Errorf("write the record of %s: %w", id, err)
	}
	return syncDir(r.dir)
}

// reserve begins a create: of many for one id exactly one gets it.
func (r records) reserve(kept record) error {
	name, err := r.file(kept.ID)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return err
	}
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return errReserved
	}
	if err != nil {
		return err
	}
	_, err = file.Write(encode(kept))
	return errors.Join(err, file.Sync(), file.Close(), syncDir(r.dir))
}

var errReserved = errors.New("there is a record")

// drop removes the record of an id.
func (r records) drop(id string) error {
	name, err := r.file(id)
	if err != nil {
		return err
	}
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// dropOf removes the record of a sandbox, if it is the fleet's.
func (r records) dropOf(id, fleet string) error {
	kept, err := r.get(id, fleet)
	if err != nil || kept == nil {
		return err
	}
	return r.drop(id)
}

// all returns the records of a fleet's sandboxes, by id.
func (r records) all(fleet string) (map[string]*record, error) {
	entries, err := os.ReadDir(r.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	found := map[string]*record{}
	for _, entry := range entries {
		id, ok := strings.CutSuffix(entry.Name(), ".json")
		if !ok || !sdk.IsSandboxID(id) {
			continue
		}
		kept, err := r.get(id, fleet)
		if err != nil {
			return nil, err
		}
		if kept != nil {
			found[id] = kept
		}
	}
	return found, nil
}
