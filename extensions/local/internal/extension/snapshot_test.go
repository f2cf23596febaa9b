// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/extensions/local/internal/extension"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// counter is a main process with state in memory that it tells over a port.
var counter = sdk.Profile{
	Name: "counter",
	Command: []string{"python3", "-uc", `
import socket, os
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("0.0.0.0", 8080)); s.listen(16)
n = 0
open("/srv/listening", "w").write("yes")
while True:
    c, _ = s.accept()
    n += 1
    c.sendall(b"%d\n" % n)
    c.close()
`},
	Ports:   map[string]int{"web": 8080},
	Network: &sdk.Network{Egress: sdk.EgressDeny},
}

func count(t *testing.T, s sdk.Sandbox) int {
	t.Helper()
	conn, err := net.DialTimeout("tcp", s.Endpoints["web"], 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		t.Fatalf("port of %s: %v", s.ID, err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func snap(t *testing.T, e *extension.Extension, id string, kind sdk.SnapshotKind) sdk.Snapshot {
	t.Helper()
	snapshotID := newID("snp-")
	made, err := e.Snapshot(t.Context(), sdk.SnapshotOptions{Target: target(id), SnapshotID: snapshotID, Kind: kind, ExpiresAt: time.Now().Add(time.Hour),
		Identity: sdk.Identity{ID: snapshotID, Fleet: fleet}})
	if err != nil {
		t.Fatalf("%s snapshot: %v", kind, err)
	}
	return made.Snapshot
}

func restore(t *testing.T, e *extension.Extension, snapshotID string, opts sdk.CreateOptions) sdk.Sandbox {
	t.Helper()
	made, err := e.Restore(t.Context(), sdk.RestoreOptions{SnapshotID: snapshotID, Create: opts})
	if err != nil {
		t.Fatalf("restore: %v", err)
	}
	destroyLater(t, e, opts.ID)
	return made.Sandbox
}

func TestMemoryForksGoOnFromWhereTheSourceWas(t *testing.T) {
	e := backend(t)
	s := create(t, e, options(counter))
	run(t, e, s.ID, "sh", "-c", "until [ -e /srv/listening ]; do sleep 0.05; done; echo kept > /etc/kept")
	for want := 1; want <= 3; want++ {
		if got := count(t, s); got != want {
			t.Fatalf("count %d, want %d", got, want)
		}
	}
	made := snap(t, e, s.ID, sdk.SnapshotMemory)
	if made.ContainsSecrets || made.Size == 0 || made.Digest == "" {
		t.Errorf("%+v", made)
	}
	if got := count(t, s); got != 4 {
		t.Errorf("the source counts %d after its snapshot, want 4", got)
	}
	for range 2 {
		fork := restore(t, e, made.ID, options(counter))
		for want := 4; want <= 5; want++ {
			if got := count(t, fork); got != want {
				t.Errorf("the fork counts %d, want %d", got, want)
			}
		}
		if got := run(t, e, fork.ID, "cat", "/etc/kept"); got != "kept\n" {
			t.Errorf("file %q", got)
		}
	}
	if got := count(t, s); got != 5 {
		t.Errorf("the source counts %d after its forks did, want 5", got)
	}
}

func TestFilesystemSnapshot(t *testing.T) {
	e := backend(t)
	profile := sdk.Profile{Name: "shell", Files: map[string]sdk.File{"/etc/config": {Content: "from the profile\n"}}}
	s := create(t, e, options(profile))
	run(t, e, s.ID, "sh", "-ec", `
		echo changed > /etc/config
		mkdir -p /srv/a/b; echo x > /srv/a/b/f; ln /srv/a/b/f /srv/hard; ln -s a/b/f /srv/soft; chmod 4755 /srv/a/b/f; chown 5:6 /srv/a
		rm /usr/bin/env; rm -r /usr/share/doc; mkdir /usr/share/doc; mkfifo /srv/fifo; echo t > /tmp/temporary`)
	made := snap(t, e, s.ID, sdk.SnapshotFilesystem)
	run(t, e, s.ID, "rm", "/etc/config") // the source goes on, by itself
	fork := restore(t, e, made.ID, options(profile))
	for command, want := range map[string]string{
		"cat /etc/config":                   "changed\n",
		"cat /srv/soft":                     "x\n",
		"stat -c '%a %h' /srv/a/b/f":        "4755 2\n",
		"stat -c '%u:%g' /srv/a":            "5:6\n",
		"stat -c %F /srv/fifo":              "fifo\n",
		"test -e /usr/bin/env || echo gone": "gone\n",
		"ls -A /usr/share/doc":              "",
		"cat /tmp/temporary":                "t\n",
	} {
		if got := run(t, e, fork.ID, "sh", "-c", command); got != want {
			t.Errorf("%s: %q, want %q", command, got, want)
		}
	}
}

func TestSnapshotsAreKeptAndForgotten(t *testing.T) {
	state := stateDir(t)
	e := backendAt(t, state, time.Now)
	opts := options(sdk.Profile{Name: "shell", Command: []string{"sh", "-c", "cat $TOKEN_FILE > /dev/null; sleep 1000"}})
	opts.Secrets = map[string]sdk.Secret{"TOKEN": "canary-4711"}
	s := create(t, e, opts)
	made := snap(t, e, s.ID, sdk.SnapshotMemory)
	if !made.ContainsSecrets {
		t.Error("a memory snapshot of a sandbox with secrets does not say so")
	}
	dir := filepath.Join(state, "local", "snapshots", made.ID)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, want 0600", entry.Name(), info.Mode())
		}
	}
	for _, path := range []string{filepath.Join(dir, "manifest.json"), filepath.Join(state, "local", "sandboxes", s.ID, "record.json")} {
		if data, err := os.ReadFile(path); err != nil || bytes.Contains(data, []byte("canary")) {
			t.Errorf("%s holds a secret, or can't be read: %v", path, err)
		}
	}

	later := made.ExpiresAt.Add(time.Hour)
	for _, until := range []time.Time{later, later.Add(-90 * time.Minute)} {
		extended, err := e.ExtendSnapshot(t.Context(), sdk.ExtendSnapshotOptions{SnapshotID: made.ID, Fleet: fleet, ExpiresAt: until})
		if err != nil || !extended.Snapshot.ExpiresAt.Equal(later) {
			t.Errorf("extend to %v: %v, %v; want %v", until, extended.Snapshot.ExpiresAt, err, later)
		}
	}
	if list, err := e.ListSnapshots(t.Context(), sdk.ListSnapshotsOptions{Fleet: fleet}); err != nil || len(list.Snapshots) != 1 {
		t.Errorf("list: %+v, %v", list, err)
	}
	if list, err := e.ListSnapshots(t.Context(), sdk.ListSnapshotsOptions{Fleet: "other"}); err != nil || len(list.Snapshots) != 0 {
		t.Errorf("list of another fleet: %+v, %v", list, err)
	}
	if _, err := e.DeleteSnapshot(t.Context(), sdk.DeleteSnapshotOptions{SnapshotID: made.ID, Fleet: "other"}); !errors.Is(err, sdk.ErrNotFound) {
		t.Errorf("delete from another fleet: %v", err)
	}
	for i, existed := range []bool{true, false} {
		result, err := e.DeleteSnapshot(t.Context(), sdk.DeleteSnapshotOptions{SnapshotID: made.ID, Fleet: fleet})
		if err != nil || result.Existed != existed {
			t.Errorf("delete %d: %+v, %v", i, result, err)
		}
	}
	if left, _ := os.ReadDir(filepath.Join(state, "local", "snapshots")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestARestoreThatDoesNotFitNamesWhatDiffers(t *testing.T) {
	state := stateDir(t)
	e := backendAt(t, state, time.Now)
	s := create(t, e, options(sdk.Profile{Name: "shell"}))
	made := snap(t, e, s.ID, sdk.SnapshotMemory)
	path := filepath.Join(state, "local", "snapshots", made.ID, "manifest.json")
	original, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		change func(m, host map[string]any)
		want   string
	}{
		"another gVisor":       {func(_, host map[string]any) { host["gvisor"] = "v0" }, "gVisor"},
		"another architecture": {func(_, host map[string]any) { host["arch"] = "riscv64" }, "architecture"},
		"a better processor":   {func(_, host map[string]any) { host["cpu"] = []string{"flux_capacitor"} }, "flux_capacitor"},
		"another system":       {func(_, host map[string]any) { host["system"] = "plan9 4" }, "plan9"},
		"other packages":       {func(_, host map[string]any) { host["packages"] = "0" }, "packages"},
		"a newer format":       {func(m, _ map[string]any) { m["format"] = 99 }, "format 99"},
		"damage":               {func(m, _ map[string]any) { m["files"].([]any)[0].(map[string]any)["size"] = 1 }, "damaged"},
	} {
		var m map[string]any
		if err := json.Unmarshal(original, &m); err != nil {
			t.Fatal(err)
		}
		test.change(m, m["host"].(map[string]any))
		changed, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, changed, 0o600); err != nil {
			t.Fatal(err)
		}
		opts := options(sdk.Profile{Name: "shell"})
		_, err = e.Restore(t.Context(), sdk.RestoreOptions{SnapshotID: made.ID, Create: opts})
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want an error that names %q", name, err, test.want)
		}
		if err == nil {
			destroyLater(t, e, opts.ID)
		}
	}
}

func TestARestoreRefusesWhatWasWrittenToSince(t *testing.T) {
	state := stateDir(t)
	e := backendAt(t, state, time.Now)
	s := create(t, e, options(sdk.Profile{Name: "shell"}))
	for kind, name := range map[sdk.SnapshotKind]string{sdk.SnapshotFilesystem: "upper.tar", sdk.SnapshotMemory: "pages.img"} {
		made := snap(t, e, s.ID, kind)
		path := filepath.Join(state, "local", "snapshots", made.ID, name)
		original, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		changed := bytes.Clone(original)
		changed[len(changed)/2] ^= 1
		if err := os.WriteFile(path, changed, 0o600); err != nil {
			t.Fatal(err)
		}
		opts := options(sdk.Profile{Name: "shell"})
		_, err = e.Restore(t.Context(), sdk.RestoreOptions{SnapshotID: made.ID, Create: opts})
		if err == nil || !strings.Contains(err.Error(), name+" was changed") {
			t.Errorf("%s: %v, want an error that names %s", kind, err, name)
		}
		if err == nil {
			destroyLater(t, e, opts.ID)
		}
		// A copy of the same content is as good as the original.
		if err := os.WriteFile(path, original, 0o600); err != nil {
			t.Fatal(err)
		}
		restore(t, e, made.ID, options(sdk.Profile{Name: "shell"}))
	}
}

func TestPauseAndResume(t *testing.T) {
	e := backend(t)
	s := create(t, e, options(counter))
	run(t, e, s.ID, "sh", "-c", "until [ -e /srv/listening ]; do sleep 0.05; done")
	for range 2 { // twice is no error
		paused, err := e.Pause(t.Context(), sdk.PauseOptions{Target: target(s.ID)})
		if err != nil || paused.Sandbox.Status != sdk.StatusPaused {
			t.Fatalf("%s, %v", paused.Sandbox.Status, err)
		}
	}
	if _, err := e.Exec(t.Context(), sdk.ExecOptions{Target: target(s.ID), Command: []string{"true"}}); !errors.Is(err, sdk.ErrConflict) {
		t.Errorf("exec while paused: %v", err)
	}
	for range 2 {
		resumed, err := e.Resume(t.Context(), sdk.ResumeOptions{Target: target(s.ID)})
		if err != nil || resumed.Sandbox.Status != sdk.StatusReady {
			t.Fatalf("%s, %v", resumed.Sandbox.Status, err)
		}
	}
	if got := count(t, s); got != 1 {
		t.Errorf("count %d", got)
	}
	if _, err := e.Pause(t.Context(), sdk.PauseOptions{Target: target(s.ID)}); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Expire(t.Context(), sdk.ExpireOptions{Target: target(s.ID), Generation: 1}); err != nil {
		t.Fatal(err)
	}
	until(t, e, s.ID, sdk.StatusExpired)
}
