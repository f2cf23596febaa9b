// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// halfDone makes a directory with a lock and something secret in it, and
// returns what ends its maker's life.
func halfDone(t *testing.T, dir, lock string) (die func()) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "pages.img"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(dir, lock))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	return func() { f.Close() }
}

func there(path string) bool { _, err := os.Lstat(path); return err == nil }

func TestAKilledSnapshotIsFoundAndDeleted(t *testing.T) {
	state := stateDir(t)
	e := backendAt(t, state, time.Now)
	id := newID("snp-")
	partial := filepath.Join(state, "local", "snapshots", id+".partial")
	die := halfDone(t, partial, "lock")
	get := func() error {
		_, err := e.GetSnapshot(t.Context(), sdk.GetSnapshotOptions{SnapshotID: id, Fleet: fleet})
		return err
	}
	remove := func() (bool, error) {
		r, err := e.DeleteSnapshot(t.Context(), sdk.DeleteSnapshotOptions{SnapshotID: id, Fleet: fleet})
		return r.Existed, err
	}
	if err := get(); !errors.Is(err, sdk.ErrConflict) || !strings.Contains(err.Error(), "being written") {
		t.Errorf("get of one that is being written: %v", err)
	}
	if _, err := remove(); !errors.Is(err, sdk.ErrConflict) {
		t.Errorf("delete of one that is being written: %v", err)
	}
	if list, err := e.ListSnapshots(t.Context(), sdk.ListSnapshotsOptions{Fleet: fleet}); err != nil || len(list.Snapshots) > 0 || !there(partial) {
		t.Errorf("list beside one that is being written: %+v, %v, there %v", list, err, there(partial))
	}
	die()
	if err := get(); !errors.Is(err, sdk.ErrConflict) || !strings.Contains(err.Error(), "delete it") {
		t.Errorf("get of an unfinished one: %v", err)
	}
	if existed, err := remove(); err != nil || !existed || there(partial) {
		t.Errorf("delete of an unfinished one: %v, %v, there %v", existed, err, there(partial))
	}
	if err := get(); !errors.Is(err, sdk.ErrNotFound) {
		t.Errorf("get afterwards: %v", err)
	}
	if existed, err := remove(); err != nil || existed {
		t.Errorf("delete afterwards: %v, %v", existed, err)
	}
}

func TestListingRemovesWhatTheDeadLeft(t *testing.T) {
	state := stateDir(t)
	e := backendAt(t, state, time.Now)
	root := filepath.Join(state, "local")
	list := func() {
		if _, err := e.ListSnapshots(t.Context(), sdk.ListSnapshotsOptions{Fleet: fleet}); err != nil {
			t.Error(err)
		}
		if _, err := e.List(t.Context(), sdk.ListOptions{Fleet: fleet}); err != nil {
			t.Error(err)
		}
	}
	locks := map[string]string{
		filepath.Join(root, "snapshots", newID("snp-")+".partial"): "lock",
		filepath.Join(root, "snapshots", ".new-1"):                 "lock",
		filepath.Join(root, "sandboxes", ".new-2"):                 "supervisor.lock",
	}
	var kill []func()
	for dir, lock := range locks {
		kill = append(kill, halfDone(t, dir, lock))
	}
	deleted := filepath.Join(root, "snapshots", "."+newID("snp-")+".deleted-abc")
	halfDone(t, deleted, "pages.img")() // its lock is gone already
	begun := filepath.Join(root, "sandboxes", ".new-3")
	if err := os.Mkdir(begun, 0o700); err != nil {
		t.Fatal(err)
	}
	list()
	for dir := range locks {
		if !there(dir) {
			t.Errorf("%s was removed under its maker", dir)
		}
	}
	if there(deleted) || !there(begun) {
		t.Errorf("half deleted: there %v; begun a moment ago: there %v", there(deleted), there(begun))
	}
	for _, die := range kill {
		die()
	}
	past := time.Now().Add(-time.Minute)
	if err := os.Chtimes(begun, past, past); err != nil {
		t.Fatal(err)
	}
	list()
	for _, parent := range []string{"snapshots", "sandboxes"} {
		if left, err := os.ReadDir(filepath.Join(root, parent)); err != nil || len(left) > 0 {
			t.Errorf("left in %s: %v, %v", parent, left, err)
		}
	}
}

func TestCreatingTidies(t *testing.T) {
	state := stateDir(t)
	e := backendAt(t, state, time.Now)
	old := filepath.Join(state, "local", "images", ".new-2")
	partial := filepath.Join(state, "local", "snapshots", newID("snp-")+".partial")
	if err := os.MkdirAll(filepath.Dir(old), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(old, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	halfDone(t, partial, "lock")()
	past := time.Now().Add(-24 * time.Hour)
	if err := os.Chtimes(old, past, past); err != nil {
		t.Fatal(err)
	}
	create(t, e, options(sdk.Profile{Name: "shell"}))
	if there(old) || there(partial) {
		t.Errorf("still there: %v, %v", there(old), there(partial))
	}
}
