// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package extension

// What the vendor can't hold: which filesystem snapshots there are, for its
// images have no tags and no listing, and the locks that make a change of tags
// a compare-and-swap for all who share the directory.

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

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// recordVersion is that of the format; a newer one is refused.
const recordVersion = 1

// record is what is kept of one snapshot.
type record struct {
	Version  int          `json:"version"`
	Snapshot sdk.Snapshot `json:"snapshot"`
}

type records struct{ dir string }

// locks is how many files the locks are spread over.
const locks = 1024

// lockPause is the pause between two tries to get a lock.
const lockPause = 5 * time.Millisecond

// locked runs act while nobody else runs one for the same id.
func (r records) locked(ctx context.Context, id string, act func() error) error {
	dir := filepath.Join(r.dir, "locks")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("the locks of Modal sandboxes: %w", err)
	}
	sum := sha256.Sum256([]byte(id))
	name := filepath.Join(dir, fmt.Sprintf("%03x", (int(sum[0])<<8|int(sum[1]))%locks))
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("the locks of Modal sandboxes: %w", err)
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
		// Whoever has the lock takes time of the machine's clock.
		if err := (machineClock{}).Sleep(ctx, lockPause); err != nil {
			return err
		}
	}
}

// errLocked means that somebody else has the lock.
var errLocked = errors.New("locked")

// file is where the record of a snapshot is: its id is part of the name.
func (r records) file(id string) (string, error) {
	if !sdk.IsSnapshotID(id) {
		return "", sdk.Errorf(sdk.ErrNotFound, "%.80q is not a snapshot id", id)
	}
	return filepath.Join(r.dir, id+".json"), nil
}

// get returns the record of a fleet's snapshot.
func (r records) get(id, fleet string) (record, error) {
	var kept record
	name, err := r.file(id)
	if err != nil {
		return kept, err
	}
	absent := sdk.Errorf(sdk.ErrNotFound, "no snapshot %s is known in %s", id, r.dir)
	content, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return kept, absent
	}
	if err != nil {
		return kept, err
	}
	var head struct{ Version int }
	if err := json.Unmarshal(content, &head); err != nil {
		return kept, fmt.Errorf("the record %s can't be read: %w", name, err)
	}
	if head.Version > recordVersion {
		return kept, fmt.Errorf("the record %s has the format %d and this program knows %d: use the newer sandboxer", name, head.Version, recordVersion)
	}
	if err := json.Unmarshal(content, &kept); err != nil {
		return kept, fmt.Errorf("the record %s can't be read: %w", name, err)
	}
	if kept.Snapshot.Identity.Fleet != fleet {
		return kept, absent
	}
	return kept, nil
}

// put writes a record, durable before it returns.
func (r records) put(kept record) error {
	name, err := r.file(kept.Snapshot.ID)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return err
	}
	content, err := json.Marshal(kept)
	if err != nil {
		return err
	}
	file, err := os.CreateTemp(r.dir, ".new-")
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), name)
	}
	if err != nil {
		_ = os.Remove(file.Name()) // the first error is the one to show
		return fmt.Errorf("write the record of %s: %w", kept.Snapshot.ID, err)
	}
	return syncDir(r.dir)
}

// drop removes a record.
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

// all returns the records of a fleet's snapshots.
func (r records) all(fleet string) ([]record, error) {
	entries, err := os.ReadDir(r.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var found []record
	for _, entry := range entries {
		id, ok := strings.CutSuffix(entry.Name(), ".json")
		if !ok || !sdk.IsSnapshotID(id) {
			continue
		}
		kept, err := r.get(id, fleet)
		switch {
		case errors.Is(err, sdk.ErrNotFound): // another fleet's, or removed right now
		case err != nil:
			return nil, err
		default:
			found = append(found, kept)
		}
	}
	return found, nil
}
