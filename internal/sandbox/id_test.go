// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sandbox

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestIDsSortByTimeAndCarryIt(t *testing.T) {
	at := time.Date(2026, 5, 4, 3, 2, 1, 987e6, time.UTC)
	var ids []string
	for i := range 200 {
		ids = append(ids, NewID(at.Add(time.Duration(i)*time.Millisecond)))
	}
	if !slices.IsSorted(ids) {
		t.Error("ids do not sort by their creation")
	}
	for i, id := range ids {
		if err := ParseID(id); err != nil || len(id) != len(IDPrefix)+20 {
			t.Fatalf("%q: %v", id, err)
		}
		if got, err := IDTime(id); err != nil || !got.Equal(at.Add(time.Duration(i)*time.Millisecond)) {
			t.Fatalf("%q carries %s, %v", id, got, err)
		}
	}
	if slices.Sort(ids); len(slices.Compact(ids)) != len(ids) {
		t.Error("two ids are equal")
	}
}

func TestIDsOfOneMomentDiffer(t *testing.T) {
	seen := map[string]bool{}
	for range 10_000 {
		id := NewSnapshotID(time.UnixMilli(1_700_000_000_000))
		if seen[id] || ParseSnapshotID(id) != nil {
			t.Fatalf("%q came twice or is not valid", id)
		}
		seen[id] = true
	}
}

func TestParseIDRefuses(t *testing.T) {
	good := NewID(time.Now())
	for _, id := range []string{
		"", "sbx-", good + "0", good[:len(good)-1], strings.ToUpper(good), "snp" + good[3:], "../" + good,
		good[:10] + "/" + good[11:], good + "\n", "sbx-" + strings.Repeat("z", 20), good[:20] + "\x00" + good[21:],
	} {
		if err := ParseID(id); err == nil {
			t.Errorf("%q was accepted", id)
		}
	}
}

func FuzzParseID(f *testing.F) {
	f.Add(NewID(time.UnixMilli(1)))
	f.Add("sbx-00000000000000000000")
	f.Add("snp-../../../../../etc/pass")
	f.Fuzz(func(t *testing.T, id string) {
		if ParseID(id) != nil {
			return
		}
		if len(id) != 24 || strings.ContainsAny(id, "/\\.\x00 \n") {
			t.Errorf("%q was accepted", id)
		}
		if _, err := IDTime(id); err != nil {
			t.Errorf("%q is valid and carries no time: %v", id, err)
		}
	})
}
