// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension

// The state directory of the backend.
//
//	<root>/bin/<digest>/     copies of this binary; see program.go
//	<root>/images/           unpacked images, by content
//	<root>/mnt/              empty; supervisors mount their private root on it
//	<root>/sandboxes/<id>/   one sandbox; see package record
//	<root>/snapshots/<id>/   one snapshot
//	<root>/probe.json        the verdict of the last probe

import (
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/record"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

type store struct {
	root string
	self string // the binary to copy
}

func (s store) path(names ...string) string {
	return filepath.Join(append([]string{s.root}, names...)...)
}

func (s store) sandbox(id string) string  { return s.path("sandboxes", id) }
func (s store) snapshot(id string) string { return s.path("snapshots", id) }
func (s store) partial(id string) string  { return s.path("snapshots", id+partialSuffix) }

// open makes the state directory. It holds what sandboxes write, so nobody
// else may look into it.
func (s store) open() error {
	if s.root == "" {
		return sdk.Errorf(sdk.ErrInvalid, "the backend is not configured")
	}
	if err := os.MkdirAll(filepath.Dir(s.root), 0o700); err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	for _, dir := range []string{s.root, s.path("bin"), s.path("images"), s.path("mnt"), s.path("sandboxes"), s.path("snapshots")} {
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("state directory: %w", err)
		}
	}
	// Whoever can write here decides what runs as this user.
	for _, dir := range []string{filepath.Dir(s.root), s.root, s.path("bin"), s.path("images"), s.path("mnt"), s.path("sandboxes"), s.path("snapshots")} {
		if err := checkPrivate(dir, dir != filepath.Dir(s.root)); err != nil {
			return err
		}
	}
	return nil
}

// checkPrivate refuses a directory that others can write to, and one that
// belongs to another user where it has to be ours.
func checkPrivate(dir string, own bool) error {
	stat := os.Lstat
	if !own {
		stat = os.Stat // the configured directory may be a link
	}
	info, err := stat(dir)
	if err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	if !info.IsDir() {
		return sdk.Invalid("state_dir", "%s is not a directory", dir)
	}
	owner := int(info.Sys().(*syscall.Stat_t).Uid)
	if owner != os.Geteuid() && (own || owner != 0) {
		return sdk.Invalid("state_dir", "%s belongs to uid %d and this is uid %d: a state directory has one user", dir, owner, os.Geteuid())
	}
	if mode := info.Mode().Perm(); mode&0o022 != 0 {
		return &sdk.Error{Kind: sdk.ErrInvalid, Path: "state_dir", Message: fmt.Sprintf("%s has mode %04o, so other users can write to it", dir, mode),
			Advice: "chmod go-w " + dir}
	}
	return nil
}

// uid returns what sandboxes run as on the host. An unprivileged user's run
// as that user. Root's run as a user that nothing else uses: one for each
// state directory, above the ranges that login and containers are given, so
// that an escape from a sandbox is nobody.
func (s store) uid() int {
	if os.Geteuid() != 0 {
		return os.Geteuid()
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(s.root))
	return 0x70000000 + int(h.Sum32()&0xffffff)
}

// own hands a path to the user that sandboxes run as.
func (s store) own(path string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	return os.Lchown(path, s.uid(), s.uid())
}

// machine names this machine in a ref.
func machine() string {
	for _, path := range []string{"/etc/machine-id", "/var/lib/dbus/machine-id"} {
		if data, err := os.ReadFile(path); err == nil {
			if id := strings.TrimSpace(string(data)); len(id) >= 12 {
				return id[:12]
			}
		}
	}
	host, err := os.Hostname()
	if err != nil || host == "" {
		return "unknown"
	}
	return host
}

// ref is the backend's own handle: machine, state directory and id.
func (s store) ref(id string) string { return s.instance() + ":" + id }

// instance names this machine and state directory.
func (s store) instance() string { return "local:" + machine() + ":" + filepath.Dir(s.root) }

// here checks that a ref is about this machine and state directory. From
// elsewhere a sandbox can't be seen, and that says nothing about whether it
// is there.
func (s store) here(ref, id string) error {
	if ref == "" || ref == s.ref(id) {
		return nil
	}
	rest, ok := strings.CutPrefix(ref, "local:")
	where, rest, ok2 := strings.Cut(rest, ":")
	i := strings.LastIndex(rest, ":")
	if !ok || !ok2 || i < 0 {
		return sdk.Invalid("ref", "%q is not a ref of the local backend", clip(ref))
	}
	dir, refID := rest[:i], rest[i+1:]
	if refID != id {
		return sdk.Invalid("ref", "%q is about %s, not %s", clip(ref), clip(refID), clip(id))
	}
	return &sdk.Error{Kind: sdk.ErrUnreachable,
		Message: fmt.Sprintf("sandbox %s lives on machine %s in %s; this is machine %s and %s", id, clip(where), clipAt(dir, 4096), machine(), filepath.Dir(s.root)),
		Advice:  "run this on that machine with that state directory"}
}

// errNoRecord is a sandbox that runs and whose record was taken away. Its
// supervisor ends it as soon as it looks.
var errNoRecord = errors.New("the sandbox runs and its record is missing (its supervisor ends it within seconds; destroy removes what is left)")

// unreadable says why a record can't be used. It is none of the sdk's kinds:
// the backend was reached and the sandbox is there.
func unreadable(id, dir string, err error) error {
	advice := "its supervisor ends it at the deadline that it read last; when nothing of it runs any more, remove the directory " + dir
	if errors.Is(err, record.ErrNewer) {
		advice = "use the newer sandboxer"
	}
	return fmt.Errorf("%s: %s can't be read: %w (%s)", named(id), record.Path(dir), err, advice)
}

// read returns the record of a sandbox of a fleet. An object of another
// fleet does not exist for this one.
func (e *Extension) read(target sdk.Target) (record.Record, string, error) {
	fleet, err := e.fleetOf(target.Fleet)
	if err != nil {
		return record.Record{}, "", err
	}
	if !sdk.IsSandboxID(target.ID) {
		return record.Record{}, "", sdk.Invalid("id", "%q is not a sandbox id", clip(target.ID))
	}
	if e.store.root == "" {
		return record.Record{}, "", sdk.Errorf(sdk.ErrInvalid, "the backend is not configured")
	}
	if err := e.store.here(target.Ref, target.ID); err != nil {
		return record.Record{}, "", err
	}
	dir := e.store.sandbox(target.ID)
	r, err := record.Read(dir, target.ID)
	if errors.Is(err, record.ErrGone) {
		if record.SupervisorAlive(dir) {
			return r, dir, errNoRecord
		}
		return r, dir, sdk.Errorf(sdk.ErrNotFound, "%s is not in %s", named(target.ID), filepath.Dir(e.store.root))
	}
	if err != nil {
		return r, dir, unreadable(target.ID, dir, err)
	}
	if r.Identity.Fleet != fleet {
		return r, dir, sdk.Errorf(sdk.ErrNotFound, "%s is not of fleet %q", named(target.ID), clip(fleet))
	}
	return r, dir, nil
}
