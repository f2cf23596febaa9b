// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package ledger

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// seal turns a JSON object into a line with its hash, newline included.
func seal(body string) string {
	sum := sha256.Sum256([]byte(body))
	return strings.TrimSuffix(body, "}") + hashOpen + hex.EncodeToString(sum[:]) + hashClose + "\n"
}

// FuzzLine holds the parser of lines to its contract: it never panics, and
// what it accepts has the hash of its content and survives being written
// again.
func FuzzLine(f *testing.F) {
	f.Add([]byte(seal(`{"v":1,"ledger_id":"ldg-1","id":"sbx-00000000000000000000","sequence":1,"time":"2031-05-06T07:08:09Z","type":"intended"}`)), false)
	f.Add([]byte(`{"v":1,"id":"sbx-00000000000000000000","sequence":-1,"lease":{"generation":1e3}}`), true)
	f.Add([]byte(`{"v":2}`), true)
	f.Add([]byte(`{"v":1,"intent":{"profile":{"limits":null}},"data":[1,2]}`), true)
	f.Add([]byte("}"), true)
	f.Fuzz(func(t *testing.T, line []byte, sealed bool) {
		if sealed {
			// Without this the fuzzer would never get past the hash.
			line = []byte(seal(string(line)))
		}
		line = bytes.TrimSuffix(line, []byte("\n"))
		if fast, ok := decodeFast(line); ok {
			if general, err := decodeAny(line); err != nil || !reflect.DeepEqual(fast, general) {
				t.Fatalf("%q: read fast as %+v, else as %+v, %v", line, fast, general, err)
			}
		}
		e, err := parseLine(line)
		var newer newerVersion
		if err != nil && !errors.As(err, &newer) {
			return
		}
		if err := checkHash(line); err != nil {
			t.Fatalf("accepted %q: %s", line, err)
		}
		if err != nil {
			return
		}
		again, err := encodeLine(e)
		if err != nil {
			return // larger than what is written
		}
		back, err := parseLine(bytes.TrimSuffix(again, []byte("\n")))
		if err != nil {
			t.Fatalf("%q was written as %q: %s", line, again, err)
		}
		back.Hash, e.Hash = "", ""
		if len(e.Message) <= maxMessage && !cmp.Equal(e, back) {
			t.Fatalf("%q was written as %q: %s", line, again, cmp.Diff(e, back))
		}
	})
}

// What is written is read fast, whatever is in it.
func TestEveryWrittenLineIsReadFast(t *testing.T) {
	for _, e := range []Event{
		{},
		{Type: Ready, Message: "é\u2028\"\\<&>\n\x00", Data: json.RawMessage(`{"a":"}\"]\\","b":[{}]}`)},
		{Type: Extended, Lease: lease(3, 1)},
		{Type: Claiming, Lease: &sdk.Lease{Claimed: true, ClaimHolder: "reaper \"x\"", Event: sdk.EventRef{LedgerID: "l", Sequence: 7, Hash: "h"}}},
		{
			LedgerID: "ldg-1", ID: "sbx-1", Sequence: 9, Time: start, Type: Adopted, Reason: "r", Message: "m", Actor: "a", Run: "u", Fleet: "f", Backend: "b", Ref: "c",
			Incarnation: 2, Status: sdk.StatusReady, Lease: lease(1, 1), ProfileRevision: "p", SnapshotID: "s", PrevHash: "h",
			Intent: &Intent{Fleet: "f", Profile: sdk.Profile{Name: "}{", Env: map[string]string{"A": "\\\"", "B": "]"}}},
		},
	} {
		line, err := encodeLine(e)
		if err != nil {
			t.Fatal(err)
		}
		line = bytes.TrimSuffix(line, []byte("\n"))
		fast, ok := decodeFast(line)
		general, err := decodeAny(line)
		if !ok || err != nil || !reflect.DeepEqual(fast, general) {
			t.Errorf("%s: read fast (%v) as %+v, else as %+v, %v", line, ok, fast, general, err)
		}
	}
}

// FuzzLog holds the reader of logs to its contract: never a panic, events
// numbered without a gap, and a good part that reads the same by itself.
func FuzzLog(f *testing.F) {
	const id = "sbx-00000000000000000000"
	one := seal(`{"v":1,"id":"` + id + `","sequence":1}`)
	f.Add([]byte(one))
	f.Add([]byte(one + one))
	f.Add([]byte(one[:len(one)-1]))
	f.Add([]byte(one + "torn"))
	f.Fuzz(func(t *testing.T, content []byte) {
		events, good, err := scan(id, content)
		if err != nil {
			return
		}
		for i, e := range events {
			if e.Sequence != int64(i+1) || e.ID != id {
				t.Fatalf("event %d is %+v", i, e)
			}
		}
		again, whole, err := scan(id, content[:good])
		if err != nil || whole != good || !cmp.Equal(events, again) {
			t.Fatalf("the good part reads differently: %v", err)
		}
	})
}
