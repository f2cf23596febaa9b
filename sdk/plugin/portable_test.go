// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// A snapshot travels out and in again, with its losses.
func TestPortableSnapshotsTravel(t *testing.T) {
	ext, host := pair(t)
	create(t, host, "sbx-1")
	if _, err := host.Snapshot(within(t), sdk.SnapshotOptions{Target: sdk.Target{ID: "sbx-1"}, SnapshotID: "snap", Identity: identity("snap")}); err != nil {
		t.Fatal(err)
	}
	var direct, wired bytes.Buffer
	steps := 0
	want, err := ext.ExportSnapshot(within(t), sdk.ExportSnapshotOptions{SnapshotID: "snap", Fleet: "fleet", Archive: &direct})
	if err != nil {
		t.Fatal(err)
	}
	have, err := host.ExportSnapshot(within(t), sdk.ExportSnapshotOptions{SnapshotID: "snap", Fleet: "fleet", Archive: &wired, Progress: func(sdk.Progress) { steps++ }})
	if err != nil || steps != 1 || !bytes.Equal(direct.Bytes(), wired.Bytes()) {
		t.Fatalf("%v, %d steps, %d bytes", err, steps, wired.Len())
	}
	same(t, "ExportSnapshot", want, have)

	opts := sdk.ImportSnapshotOptions{SnapshotID: "taken", Identity: identity("taken"), ExpiresAt: time.Date(2032, 1, 1, 0, 0, 0, 0, time.UTC), Archive: &wired, Progress: func(sdk.Progress) { steps++ }}
	taken, err := host.ImportSnapshot(within(t), opts)
	if err != nil || steps != 2 {
		t.Fatal(err, steps)
	}
	same(t, "the losses of ImportSnapshot", want.Losses, taken.Losses)
	both(t, "GetSnapshot", sdk.GetSnapshotOptions{SnapshotID: "taken", Fleet: "fleet"}, ext.GetSnapshot, host.GetSnapshot)
}

// An archive that breaks off is never taken for a whole one.
func TestACutArchiveIsNotTaken(t *testing.T) {
	_, host := pair(t)
	cause := errors.New("the disk broke")
	_, err := host.ImportSnapshot(within(t), sdk.ImportSnapshotOptions{SnapshotID: "s", Identity: identity("s"), Archive: io.MultiReader(strings.NewReader("half"), iotest.ErrReader(cause))})
	if !errors.Is(err, cause) {
		t.Errorf("a reader that breaks: %v", err)
	}
	if _, err := host.ImportSnapshot(within(t), sdk.ImportSnapshotOptions{SnapshotID: "s", Identity: identity("s"), Archive: strings.NewReader("half")}); !errors.Is(err, sdk.ErrInvalid) {
		t.Errorf("half an archive: %v", err)
	}
	// A caller whose own disk is full learns that.
	create(t, host, "sbx-1")
	if _, err := host.Snapshot(within(t), sdk.SnapshotOptions{Target: sdk.Target{ID: "sbx-1"}, SnapshotID: "snap", Identity: identity("snap")}); err != nil {
		t.Fatal(err)
	}
	full := &limited{left: 70_000, err: cause}
	if _, err := host.ExportSnapshot(within(t), sdk.ExportSnapshotOptions{SnapshotID: "snap", Fleet: "fleet", Archive: full}); !errors.Is(err, cause) {
		t.Errorf("a writer that breaks: %v", err)
	}
}

// limited is a writer that breaks.
type limited struct {
	left int
	err  error
}

func (l *limited) Write(p []byte) (int, error) {
	if l.left -= len(p); l.left < 0 {
		return 0, l.err
	}
	return len(p), nil
}
