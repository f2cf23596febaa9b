// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Package record keeps the record of one sandbox: a JSON file in the
// sandbox's directory, changed only under a lock and written so that it is
// either the old one or the new one, on disk, before anyone is told.
//
//	<dir>/lock              flock: every writer of record.json
//	<dir>/supervisor.lock   flock: held for as long as the supervisor lives
//	<dir>/record.json       temporary file, fsync, rename, fsync of the directory
//
// A directory may belong to an unprivileged user that a sandbox runs as, so
// files in it are opened without following links and read with a bound.
package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/failpoint"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Format is the version of the record that this program writes. A record
// with a higher one is refused: an older program must not act on what it
// does not understand.
const Format = 1

// maxSize bounds what is read; a profile is far below it.
const maxSize = 8 << 20

// ErrGone is returned for a directory that holds no record.
var ErrGone = errors.New("no record")

// ErrNewer is returned for a record that a newer program wrote.
var ErrNewer = errors.New("a newer sandboxer wrote it")

// Record is what is known about one sandbox. It holds no secret value.
type Record struct {
	Format            int           `json:"format"`
	ID                string        `json:"id"`
	Identity          sdk.Identity  `json:"identity"`
	Profile           sdk.Profile   `json:"profile"`
	Lease             sdk.Lease     `json:"lease"`
	OnExpiry          sdk.OnExpiry  `json:"on_expiry,omitempty"`
	IdleTimeout       time.Duration `json:"idle_timeout,omitempty"` // nanoseconds, as all durations here
	ExpirySnapshotTTL time.Duration `json:"expiry_snapshot_ttl,omitempty"`
	PausedTTL         time.Duration `json:"paused_ttl,omitempty"`
	EndReason         sdk.EndReason `json:"end_reason,omitempty"`
	// ExpirySnapshotID is set when the snapshot of the end is whole and on
	// disk, ExpirySnapshotError when it could not be made.
	ExpirySnapshotID    string            `json:"expiry_snapshot_id,omitempty"`
	ExpirySnapshotError string            `json:"expiry_snapshot_error,omitempty"`
	CreatedAt           time.Time         `json:"created_at"`
	Status              sdk.Status        `json:"status"`
	Reason              string            `json:"reason,omitempty"`
	Exceeded            string            `json:"exceeded,omitempty"` // the limit that ended it, where the supervisor did
	Env                 map[string]string `json:"env,omitempty"`
	Secrets             []string          `json:"secrets,omitempty"` // names only
	Ports               []Port            `json:"ports,omitempty"`
	Network             string            `json:"network"`         // the egress policy
	Home                string            `json:"home,omitempty"`  // of the main process's user
	Image               string            `json:"image,omitempty"` // digest
	ImageEnv            map[string]string `json:"image_env,omitempty"`
	SnapshotID          string            `json:"snapshot_id,omitempty"`
	UID                 int               `json:"uid"` // what the sandbox runs as on the host
	Cgroups             []string          `json:"cgroups,omitempty"`
	Program             string            `json:"program"` // digest of the binary that drives it
	GVisor              string            `json:"gvisor"`
}

// Overdue says what the passed deadline was: the lease's own, or the limit of
// the profile that no extend goes beyond.
func (r Record) Overdue() string {
	at := " at " + r.Lease.ExpiresAt.UTC().Format(time.RFC3339)
	if l := r.Profile.Limits; l != nil && l.Wall != "" {
		if wall, err := time.ParseDuration(l.Wall); err == nil && !r.Lease.ExpiresAt.Before(r.CreatedAt.Add(wall)) {
			return "limits.wall of " + l.Wall + " reached" + at
		}
	}
	return "the deadline passed" + at
}

// Port is one published port.
type Port struct {
	Name  string `json:"name"`
	Guest int    `json:"guest"`
	Host  int    `json:"host"`
}

// Process names a process for good: a pid alone may be used again.
type Process struct {
	Pid   int    `json:"pid"`
	Start string `json:"start"` // start time as in /proc/PID/stat
	Boot  string `json:"boot"`  // boot id
}

// UsedPath returns the file in a sandbox's directory whose time is that of the
// last use, where the sandbox has an idle clock.
func UsedPath(dir string) string { return filepath.Join(dir, "used") }

// Used returns when a sandbox was last used; zero when that can't be told.
func Used(dir string) time.Time {
	info, err := os.Lstat(UsedPath(dir))
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// Path returns the record's path in a sandbox's directory.
func Path(dir string) string { return filepath.Join(dir, "record.json") }

// Read returns the record of a sandbox in its directory, or ErrGone. A record
// that is about another sandbox is an error like one that can't be read.
func Read(dir, id string) (Record, error) {
	data, err := readFile(Path(dir))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return Record{}, fmt.Errorf("%s: %w", dir, ErrGone)
	}
	if err != nil {
		return Record{}, err
	}
	r, err := Decode(data)
	if err != nil {
		return Record{}, err
	}
	if r.ID != id {
		return Record{}, fmt.Errorf("record is about %.40q", r.ID)
	}
	return r, nil
}

// Decode reads a record.
func Decode(data []byte) (Record, error) {
	var version struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(data, &version); err != nil {
		return Record{}, fmt.Errorf("record: %w", err)
	}
	if version.Format > Format {
		return Record{}, fmt.Errorf("record has format %d and this program knows %d: %w", version.Format, Format, ErrNewer)
	}
	if version.Format < 1 {
		return Record{}, fmt.Errorf("record has format %d", version.Format)
	}
	var r Record
	if err := json.Unmarshal(data, &r); err != nil {
		return Record{}, fmt.Errorf("record: %w", err)
	}
	return r, nil
}

// Update changes a record under its lock. When change returns an error, or
// leaves the record as it was, nothing is written.
func Update(dir, id string, change func(*Record) error) (Record, error) {
	unlock, err := Lock(dir)
	if err != nil {
		return Record{}, err
	}
	defer unlock()
	r, err := Read(dir, id)
	if err != nil {
		return Record{}, err
	}
	before, err := json.Marshal(r)
	if err != nil {
		return Record{}, err
	}
	if err := change(&r); err != nil {
		return r, err
	}
	after, err := json.Marshal(r)
	if err != nil {
		return r, err
	}
	if string(before) == string(after) {
		return r, nil
	}
	return r, Write(dir, r)
}

// Write writes a record durably. The caller holds the lock, or is the
// directory's maker.
func Write(dir string, r Record) error {
	r.Format = Format
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	data = padded(data)
	err = WriteFile(Path(dir), data, 0o600)
	if full(err) {
		if spareErr := writeSpare(dir, data); spareErr != nil {
			return errors.Join(err, spareErr)
		}
		return nil
	}
	if err == nil {
		reserve(dir, int64(len(data)))
	}
	return err
}

// Records and manifests are written so.
const (
	fileWritten failpoint.Point = "local.file.written" // durable, without its name
	fileRenamed failpoint.Point = "local.file.renamed"
)

// WriteFile replaces a file durably: temporary file, fsync, rename, fsync of
// the directory. As root the file gets the directory's owner, who is the one
// that the supervisor runs as.
func WriteFile(path string, data []byte, mode os.FileMode) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if err := f.Chmod(mode); err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := chownLike(f, dir); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := failpoint.Hit(fileWritten); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	if err := failpoint.Hit(fileRenamed); err != nil {
		return err
	}
	return SyncDir(dir)
}

// SyncDir makes a rename in a directory durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

func chownLike(f *os.File, dir string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	owner := info.Sys().(*syscall.Stat_t)
	return f.Chown(int(owner.Uid), int(owner.Gid))
}

func readFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxSize {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, maxSize)
	}
	return data, nil
}
