// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/clock"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

var start = time.Date(2031, 5, 6, 7, 8, 9, 0, time.UTC)

func newLedger(t testing.TB) (*Ledger, *clock.Fake) {
	t.Helper()
	fake := clock.NewFake(start)
	return New(filepath.Join(t.TempDir(), "state", "ledger"), fake), fake
}

func always(e Event) func(Record) (Event, error) {
	return func(Record) (Event, error) { return e, nil }
}

func mustAppend(t testing.TB, l *Ledger, id string, types ...Type) Record {
	t.Helper()
	var last Record
	for _, typ := range types {
		e := Event{Type: typ, Backend: "b"}
		if typ == Intended {
			e.Intent = &Intent{Fleet: "ci", Profile: sdk.Profile{Name: "e2e"}}
		}
		var err error
		if _, last, err = l.Append(t.Context(), id, always(e)); err != nil {
			t.Fatal(err)
		}
	}
	return last
}

// writeLog writes a log at once, without a sync for each event.
func writeLog(t testing.TB, l *Ledger, id string, events []Event) {
	t.Helper()
	var content []byte
	prev := ""
	for i, e := range events {
		e.LedgerID, e.ID, e.Sequence, e.Time, e.PrevHash = "ldg-test", id, int64(i+1), start, prev
		line, err := encodeLine(e)
		if err != nil {
			t.Fatal(err)
		}
		if e, err = parseLine(line[:len(line)-1]); err != nil {
			t.Fatal(err)
		}
		prev = e.Hash
		content = append(content, line...)
	}
	if err := os.MkdirAll(filepath.Dir(l.logPath(id)), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(l.logPath(id), content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestReadingAnAbsentLedgerCreatesNothing(t *testing.T) {
	l, _ := newLedger(t)
	id := sandbox.NewID(start)
	r, err := l.Get(t.Context(), id)
	if err != nil || r.Known() || r.ID != id {
		t.Errorf("Get: %+v, %v", r, err)
	}
	if events, err := l.Events(t.Context(), id); err != nil || events != nil {
		t.Errorf("Events: %v, %v", events, err)
	}
	if records, unreadable, err := l.List(t.Context(), Filter{}); err != nil || records != nil || unreadable != nil {
		t.Errorf("List: %v, %v, %v", records, unreadable, err)
	}
	if n, err := l.Prune(t.Context(), 0); err != nil || n != 0 {
		t.Errorf("Prune: %d, %v", n, err)
	}
	if _, err := os.Stat(filepath.Dir(l.Dir())); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something was created: %v", err)
	}
}

func TestAppendedEventsAreReadBack(t *testing.T) {
	l, fake := newLedger(t)
	id := sandbox.NewID(start)
	var want []Event
	var last Record
	for _, e := range []Event{
		{
			Type: Intended, Actor: "ci", Run: "https://ci.example/1", Backend: "build1", ProfileRevision: "sha256:1", Lease: lease(0, 30),
			Intent: &Intent{Fleet: "ci", Identity: sdk.Identity{ID: id, Labels: map[string]string{"a": "<&>"}}, Profile: sdk.Profile{Name: "e2e", Env: map[string]string{"A": "é\u2028\n"}}},
		},
		{Type: Created, Ref: "c0ffee", Incarnation: 1, Lease: lease(1, 30)},
		{Type: Ready, Data: json.RawMessage(`{"took":"3ms"}`)},
		{Type: Destroyed, Reason: "user", Message: "not needed\nany more"},
	} {
		got, record, err := l.Append(t.Context(), id, func(present Record) (Event, error) {
			if present.Sequence != last.Sequence || present.Hash != last.Hash {
				t.Errorf("decide sees %d %s, the last append gave %d %s", present.Sequence, present.Hash, last.Sequence, last.Hash)
			}
			return e, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if !got.Time.Equal(fake.Now()) || got.PrevHash != last.Hash || got.EventRef().LedgerID == "" {
			t.Errorf("appended %+v after %+v", got, last)
		}
		want, last = append(want, got), record
		fake.Advance(time.Second)
	}
	again := New(l.Dir(), fake)
	events, err := again.Events(t.Context(), id)
	if diff := cmp.Diff(want, events); err != nil || diff != "" {
		t.Error(err, diff)
	}
	record, err := again.Get(t.Context(), id)
	if diff := cmp.Diff(last, record); err != nil || diff != "" {
		t.Error(err, diff)
	}
	if record.Sequence != 4 || record.Profile.Env["A"] != "é\u2028\n" {
		t.Errorf("%+v", record)
	}
}

func TestFilesAreTheOwnersOnly(t *testing.T) {
	l, _ := newLedger(t)
	mustAppend(t, l, sandbox.NewID(start), Intended)
	err := filepath.WalkDir(l.Dir(), func(name string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		want := os.FileMode(0o600)
		if entry.IsDir() {
			want = 0o700
		}
		if err == nil && info.Mode().Perm() != want {
			t.Errorf("%s has mode %o, want %o", name, info.Mode().Perm(), want)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestADecisionCanDecline(t *testing.T) {
	l, _ := newLedger(t)
	id := sandbox.NewID(start)
	refused := errors.New("refused")
	if _, _, err := l.Append(t.Context(), id, func(Record) (Event, error) { return Event{}, refused }); err != refused {
		t.Errorf("the decision's error came back as %v", err)
	}
	if e, r, err := l.Append(t.Context(), id, always(Event{})); err != nil || e.Sequence != 0 || r.Known() {
		t.Errorf("appending nothing gave %+v, %+v, %v", e, r, err)
	}
	if _, err := os.Stat(l.logPath(id)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an empty log stayed: %v", err)
	}
	mustAppend(t, l, id, Intended)
	if _, r, err := l.Append(t.Context(), id, always(Event{})); err != nil || r.Sequence != 1 {
		t.Errorf("the present record did not come back: %+v, %v", r, err)
	}
}

func TestWhatCannotBeRecordedIsRefused(t *testing.T) {
	l, _ := newLedger(t)
	id := sandbox.NewID(start)
	mustAppend(t, l, id, Intended)
	for name, c := range map[string]struct {
		id   string
		e    Event
		want error
	}{
		"a second intent":   {id, Event{Type: Intended}, sdk.ErrConflict},
		"an unknown type":   {id, Event{Type: "teleported"}, sdk.ErrInvalid},
		"large data":        {id, Event{Type: Ready, Data: json.RawMessage(`"` + strings.Repeat("x", maxData) + `"`)}, sdk.ErrInvalid},
		"data not JSON":     {id, Event{Type: Ready, Data: json.RawMessage(`{"a`)}, sdk.ErrInvalid},
		"a year of 5 digit": {id, Event{Type: Ready, Lease: &sdk.Lease{ExpiresAt: start.AddDate(9000, 0, 0)}}, sdk.ErrInvalid},
		"a huge profile":    {sandbox.NewID(start), Event{Type: Intended, Intent: &Intent{Profile: sdk.Profile{Description: strings.Repeat("x", maxLine)}}}, sdk.ErrInvalid},
		"no id":             {"", Event{Type: Ready}, sdk.ErrInvalid},
		"a path":            {"sbx-../../../../etc/passwd0", Event{Type: Ready}, sdk.ErrInvalid},
		"a long id":         {id + "0", Event{Type: Ready}, sdk.ErrInvalid},
		"a newline":         {id + "\n", Event{Type: Ready}, sdk.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			if _, _, err := l.Append(t.Context(), c.id, always(c.e)); !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
	records, unreadable, err := l.List(t.Context(), Filter{})
	if err != nil || len(records) != 1 || records[0].Sequence != 1 || len(unreadable) != 0 {
		t.Errorf("the ledger changed: %+v, %+v, %v", records, unreadable, err)
	}
}

func TestALongMessageIsCutAtARune(t *testing.T) {
	l, _ := newLedger(t)
	e, _, err := l.Append(t.Context(), sandbox.NewID(start), always(Event{Type: Failed, Message: "x" + strings.Repeat("é", maxMessage)}))
	if err != nil || !strings.HasSuffix(e.Message, "é…") || len(e.Message) > maxMessage+len("…") {
		t.Errorf("%d bytes, %v", len(e.Message), err)
	}
}

func TestAFullLogStillTakesTheEnd(t *testing.T) {
	l, _ := newLedger(t)
	id := sandbox.NewID(start)
	big := Event{Type: Adopted, Intent: &Intent{Profile: sdk.Profile{Description: strings.Repeat("x", maxLine-1024)}}}
	writeLog(t, l, id, []Event{big, big, big, big})
	if _, _, err := l.Append(t.Context(), id, always(big)); !errors.Is(err, ErrFull) {
		t.Fatalf("got %v, want %v", err, ErrFull)
	}
	if r := mustAppend(t, l, id, Claiming, Destroying, Destroyed); r.Open {
		t.Errorf("%+v", r)
	}
}

func TestListFiltersAndSorts(t *testing.T) {
	l, fake := newLedger(t)
	var ids []string
	for range 5 {
		ids = append(ids, sandbox.NewID(fake.Now()))
		fake.Advance(time.Second)
	}
	snap := sandbox.NewSnapshotID(fake.Now())
	mustAppend(t, l, ids[3], Intended, Created, Ready)
	mustAppend(t, l, ids[0], Intended, Created)
	mustAppend(t, l, ids[2], Intended, CreateFailed)
	mustAppend(t, l, ids[1], Extended) // made elsewhere: its fleet is not known
	mustAppend(t, l, snap, Intended, Snapshotted)
	for name, c := range map[string]struct {
		filter Filter
		want   []string
	}{
		"all":             {Filter{}, []string{ids[0], ids[1], ids[2], ids[3], snap}},
		"open":            {Filter{Open: true}, []string{ids[0], ids[1], ids[3], snap}},
		"of a fleet":      {Filter{Fleet: "ci", Kind: KindSandbox}, []string{ids[0], ids[2], ids[3]}},
		"of other fleet":  {Filter{Fleet: "cd"}, nil},
		"snapshots":       {Filter{Kind: KindSnapshot}, []string{snap}},
		"of no such host": {Filter{Backend: "c"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			records, unreadable, err := l.List(t.Context(), c.filter)
			var got []string
			for _, r := range records {
				got = append(got, r.ID)
			}
			if diff := cmp.Diff(c.want, got); diff != "" || err != nil || len(unreadable) != 0 {
				t.Error(diff, err, unreadable)
			}
		})
	}
}

func TestPruneTakesOnlyWhatIsLongClosed(t *testing.T) {
	l, fake := newLedger(t)
	old, fresh, open := sandbox.NewID(start), sandbox.NewID(start), sandbox.NewID(start)
	mustAppend(t, l, open, Intended, Created)
	mustAppend(t, l, old, Intended, Created, Destroyed)
	fake.Advance(DefaultRetention)
	mustAppend(t, l, fresh, Intended, CreateFailed)
	fake.Advance(time.Nanosecond)
	n, err := l.Prune(t.Context(), DefaultRetention)
	if n != 1 || err != nil {
		t.Errorf("pruned %d, %v", n, err)
	}
	for id, want := range map[string]bool{old: false, fresh: true, open: true} {
		if r, err := l.Get(t.Context(), id); err != nil || r.Known() != want {
			t.Errorf("%s: known %v, %v; want %v", id, r.Known(), err, want)
		}
	}
}

func TestTheIDIsMadeOnceAndNeverReplaced(t *testing.T) {
	l, fake := newLedger(t)
	ids := make(chan string)
	for range 16 {
		go func() {
			id, err := New(l.Dir(), fake).ID()
			if err != nil {
				t.Error(err)
			}
			ids <- id
		}()
	}
	first := <-ids
	for range 15 {
		if id := <-ids; id != first {
			t.Errorf("two ids: %s and %s", first, id)
		}
	}
	if err := os.WriteFile(filepath.Join(l.Dir(), "id"), []byte("ldg-broken\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if id, err := New(l.Dir(), fake).ID(); err == nil || id != "" {
		t.Errorf("a broken id file gave %q", id)
	}
}

func TestAHeldLogIsWaitedForUntilTheContextEnds(t *testing.T) {
	l, _ := newLedger(t)
	id := sandbox.NewID(start)
	mustAppend(t, l, id, Intended)
	err := l.withLog(t.Context(), id, false, func(*os.File) error {
		// Another process: a ledger of its own has a gate of its own.
		other := New(l.Dir(), l.clock)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if _, _, err := other.Append(ctx, id, always(Event{Type: Ready})); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if r, err := other.Get(t.Context(), id); err != nil || r.Sequence != 1 {
			t.Errorf("reading was held up: %+v, %v", r, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
