// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sshtransport

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/skeema/knownhosts"
)

const someKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHsQiKLTTt5shIjUtd0+1mPlQhCwEVxFmMWVX2Y3y0yE"

// parses tells whether the library takes a file.
func parses(t testing.TB, content []byte) error {
	t.Helper()
	file := filepath.Join(t.TempDir(), "known_hosts")
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := knownhosts.NewDB(file)
	return err
}

// Of any content, the library takes what we leave of it, and loses no line
// that it would have taken.
func FuzzKnownHosts(f *testing.F) {
	for _, text := range []string{
		"h " + someKey, "h " + someKey + " a b c\r\n", "@revoked * " + someKey + "\nx", "@cert-authority *.x " + someKey, "@other h " + someKey,
		"|1|AAAA|BBBB " + someKey, "|2|AAAA|BBBB " + someKey, "|1|AAAA " + someKey, "[h]:22,!i " + someKey, "[h " + someKey, "! " + someKey, ", " + someKey,
		"h ssh-dss AAAAB3NzaC1kc3MAAAA=", "h ssh-rsa AAAA", "h\tssh-ed25519\t" + someKey[12:], "# c\n\n \t\nh", "@revoked h", "h x y", "\x00", "@revoked @revoked h " + someKey,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		for line := range bytes.Lines(content) {
			line = bytes.TrimSuffix(line, []byte("\n"))
			if ours, theirs := checkLine(line), parses(t, line); (ours == nil) != (theirs == nil) {
				t.Fatalf("%q: ours %v, the library's %v", line, ours, theirs)
			}
		}
		kept, err := usableLines(content, "a.host.of.no.line")
		if err != nil {
			return // a line that may revoke a key
		}
		if bytes.Count(kept, []byte("\n")) < bytes.Count(content, []byte("\n")) {
			t.Fatalf("%q has fewer lines than %q", kept, content)
		}
		if err := parses(t, kept); err != nil {
			t.Fatalf("%q of %q: %v", kept, content, err)
		}
	})
}

func FuzzHostKey(f *testing.F) {
	for _, text := range []string{someKey, "h " + someKey, "SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", someKey + "\n\n" + someKey, "x"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		keys, err := parseHostKeys(text)
		if err == nil && len(keys) == 0 {
			t.Fatal("neither a key nor an error")
		}
		for _, key := range keys {
			if (key.public == nil) == (key.fingerprint == "") {
				t.Fatalf("%+v", key)
			}
		}
	})
}
