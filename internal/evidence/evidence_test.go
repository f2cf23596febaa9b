// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package evidence

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

var at = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

func scope() Scope {
	return Scope{Verb: VerbDestroy, Fleet: "ci", Kinds: []string{KindSandbox}, IDs: []string{"b", "a", "b"}, Labels: map[string]string{"k": "v"}}
}

func closed(change func(*Receipt)) *Receipt {
	r := New(scope(), []string{"two", "one"})
	r.Items = append(r.Items, Item{Kind: KindSandbox, ID: "a", Backend: "one", Outcome: OutcomeRemoved}, Item{Kind: KindSandbox, ID: "b", Outcome: OutcomeGone})
	if change != nil {
		change(r)
	}
	r.Close(at)
	return r
}

func newKey(t testing.TB) (ed25519.PublicKey, ed25519.PrivateKey) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return public, private
}

// seal signs anything, as a foreign signer would.
func seal(t testing.TB, payloadType string, payload []byte, key ed25519.PrivateKey) []byte {
	t.Helper()
	sealed, err := json.Marshal(envelope{PayloadType: payloadType, Payload: base64.StdEncoding.EncodeToString(payload), Signatures: []signature{
		{Sig: base64.StdEncoding.EncodeToString(ed25519.Sign(key, pae(payloadType, payload)))},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return sealed
}

func TestPAE(t *testing.T) {
	// The example of the DSSE protocol.
	if got := string(pae("http://example.com/HelloWorld", []byte("hello world"))); got != "DSSEv1 29 http://example.com/HelloWorld 11 hello world" {
		t.Error(got)
	}
}

func TestSignVerify(t *testing.T) {
	public, private := newKey(t)
	other, _ := newKey(t)
	sealed, err := Sign(closed(nil).Statement(), private)
	if err != nil {
		t.Fatal(err)
	}
	statement, keyID, err := Verify(sealed, other, public)
	if err != nil || keyID != KeyID(public) || !statement.Predicate.Empty || !statement.Predicate.At.Equal(at) {
		t.Errorf("%+v, %s, %v", statement, keyID, err)
	}
	if got := strings.Join(statement.Predicate.Scope.IDs, ""); got != "ab" {
		t.Errorf("ids %s", got)
	}
	if got := statement.Subject[0].Digest["sha256"]; got != closed(nil).Scope.Digest() || len(got) != 64 {
		t.Errorf("digest %s", got)
	}
}

func TestVerifyRefuses(t *testing.T) {
	public, private := newKey(t)
	other, _ := newKey(t)
	good, err := Sign(closed(nil).Statement(), private)
	if err != nil {
		t.Fatal(err)
	}
	payload, err := json.Marshal(closed(nil).Statement())
	if err != nil {
		t.Fatal(err)
	}
	replaced := func(old, with string) []byte {
		changed := bytes.Replace(payload, []byte(old), []byte(with), 1)
		if bytes.Equal(changed, payload) {
			t.Fatalf("no %s in %s", old, payload)
		}
		return changed
	}
	tampered := bytes.Replace(good, []byte(base64.StdEncoding.EncodeToString(payload)), []byte(base64.StdEncoding.EncodeToString(replaced(`"ci"`, `"cx"`))), 1)
	var twenty envelope
	if err := json.Unmarshal(good, &twenty); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		twenty.Signatures = append(twenty.Signatures, twenty.Signatures[0])
	}
	crowded, err := json.Marshal(twenty)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		sealed []byte
		key    ed25519.PublicKey
		want   string
	}{
		"a wrong key":              {good, other, "not signed by the key"},
		"no key":                   {good, nil, "not signed by the key"},
		"a changed payload":        {tampered, public, "not signed by the key"},
		"a foreign payload type":   {seal(t, "application/json", payload, private), public, "holds"},
		"another type's signature": {bytes.Replace(seal(t, "application/json", payload, private), []byte("application/json"), []byte(PayloadType), 1), public, "not signed by"},
		"too large":                {make([]byte, MaxSize+1), public, "larger than"},
		"too many signatures":      {crowded, public, "21 signatures"},
		"no signature":             {[]byte(`{"payloadType":"` + PayloadType + `"}`), public, "0 signatures"},
		"no envelope":              {[]byte("x"), public, "no envelope"},
		"no base64":                {[]byte(`{"payloadType":"` + PayloadType + `","payload":"?","signatures":[{}]}`), public, "payload"},
		"another statement":        {seal(t, PayloadType, replaced(StatementType, "https://in-toto.io/Statement/v9"), private), public, "type"},
		"another predicate":        {seal(t, PayloadType, replaced(PredicateType, "https://slsa.dev/provenance/v1"), private), public, "says"},
		"another scope":            {seal(t, PayloadType, replaced(`"ids":["a","b"]`, `"ids":["a"]`), private), public, "subject"},
		"an unknown field":         {seal(t, PayloadType, replaced(`"empty"`, `"but":1,"empty"`), private), public, "unknown field"},
		"something after it":       {seal(t, PayloadType, append(bytes.Clone(payload), payload...), private), public, "follows"},
		"a conclusion of its own":  {seal(t, PayloadType, replaced(`"remaining":[]`, `"remaining":[{"kind":"sandbox","id":"a"}]`), private), public, "conclusion"},
		"no time":                  {seal(t, PayloadType, replaced("2030-01-02T03:04:05Z", "0001-01-01T00:00:00Z"), private), public, "no time"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, _, err := Verify(test.sealed, test.key); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, wanted %s", err, test.want)
			}
		})
	}
}

// FuzzVerify holds the reader of receipts to its contract: it believes no
// envelope that nobody signed, and of a signed statement only one that agrees
// with itself.
func FuzzVerify(f *testing.F) {
	public, private := newKey(f)
	good, err := Sign(closed(nil).Statement(), private)
	if err != nil {
		f.Fatal(err)
	}
	payload, err := json.Marshal(closed(nil).Statement())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good, false)
	f.Add(payload, true)
	f.Add([]byte(`{"payloadType":"application/vnd.in-toto+json","payload":"e30=","signatures":[{"sig":""}]}`), false)
	f.Add([]byte(`{"_type":"https://in-toto.io/Statement/v1","predicate":{"empty":true}}`), true)
	f.Fuzz(func(t *testing.T, content []byte, signed bool) {
		if signed {
			// Without this the fuzzer would never get past the signature.
			content = seal(t, PayloadType, content, private)
		}
		statement, signer, err := Verify(content, public)
		if err != nil {
			return
		}
		if signer != KeyID(public) || statement.Predicate.Empty != statement.Predicate.empty() {
			t.Errorf("%q was believed: %+v", content, statement)
		}
		if _, err := Sign(statement, private); err != nil {
			t.Errorf("%q was believed and can't be signed: %s", content, err)
		}
	})
}

func TestNeverEmpty(t *testing.T) {
	if !closed(nil).Empty {
		t.Error("all gone, all enumerated, and not empty")
	}
	for name, change := range map[string]func(*Receipt){
		"unreachable before":     func(r *Receipt) { r.Missed(map[string]string{"one": "no route"}, nil) },
		"one of nobody":          func(r *Receipt) { r.Missed(map[string]string{"other": "not configured"}, nil) },
		"no reason":              func(r *Receipt) { r.Missed(map[string]string{"one": ""}, nil) },
		"unreadable log":         func(r *Receipt) { r.Missed(nil, []string{"a.log: damaged"}) },
		"something remains":      func(r *Receipt) { r.Remaining = append(r.Remaining, Item{ID: "c"}) },
		"nobody was asked":       func(r *Receipt) { r.Asked = nil },
		"failed":                 func(r *Receipt) { r.Items[0].Outcome = OutcomeFailed },
		"unverifiable":           func(r *Receipt) { r.Items[0].Outcome = OutcomeUnverifiable },
		"an outcome of tomorrow": func(r *Receipt) { r.Items[0].Outcome = "parked" },
	} {
		t.Run(name, func(t *testing.T) {
			if closed(change).Empty {
				t.Error("says empty")
			}
		})
	}
	r := closed(func(r *Receipt) {
		r.Missed(map[string]string{"one": "first"}, []string{"x"})
		r.Missed(map[string]string{"one": "second"}, []string{"x"})
	})
	if r.NotEnumerated["one"] != "first" || len(r.Unreadable) != 1 || strings.Join(r.Enumerated, ",") != "two" {
		t.Errorf("%+v", r)
	}
}

func TestKeyRace(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state", "keys")
	const racers = 16
	keys := make([]ed25519.PrivateKey, racers)
	var wg sync.WaitGroup
	for i := range racers {
		wg.Go(func() {
			var err error
			if keys[i], err = Key(dir); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, key := range keys {
		if !key.Equal(keys[0]) {
			t.Fatal("two keys")
		}
	}
	public, err := PublicKey(filepath.Join(dir, PublicFile))
	if err != nil || !public.Equal(keys[0].Public()) {
		t.Errorf("public key: %v", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("%v, %v", entries, err)
	}
}

func TestKeyRefusesModes(t *testing.T) {
	if runtime.GOOS == "windows" {
		return // no such modes
	}
	dir := filepath.Join(t.TempDir(), "keys")
	if _, err := Key(dir); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, KeyFile)
	for name, mode := range map[string]fs.FileMode{file: 0o640, dir: 0o755} {
		before, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(name, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := Key(dir); err == nil || !strings.Contains(err.Error(), "mode") {
			t.Errorf("%s with the mode %o: %v", name, mode, err)
		}
		if err := os.Chmod(name, before.Mode().Perm()); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(file, []byte("no key"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Key(dir); err == nil {
		t.Error("a damaged key was taken, or replaced")
	}
}

func TestReserve(t *testing.T) {
	name := filepath.Join(t.TempDir(), "receipt.json")
	first, err := Reserve(name)
	if err != nil {
		t.Fatal(err)
	}
	second, err := Reserve(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Write([]byte("first")); err != nil {
		t.Fatal(err)
	}
	if err := second.Write([]byte("second")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("written over: %v", err)
	}
	first.Abandon()
	second.Abandon()
	if _, err := Reserve(name); !errors.Is(err, fs.ErrExist) {
		t.Errorf("reserved: %v", err)
	}
	content, err := ReadBounded(name, 5)
	if err != nil || string(content) != "first" {
		t.Errorf("%s, %v", content, err)
	}
	if _, err := ReadBounded(name, 4); err == nil {
		t.Error("no bound")
	}
	info, err := os.Stat(name)
	if err != nil || (runtime.GOOS != "windows" && info.Mode().Perm() != 0o600) {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	entries, err := os.ReadDir(filepath.Dir(name))
	if err != nil || len(entries) != 1 {
		t.Errorf("left: %v, %v", entries, err)
	}
}
