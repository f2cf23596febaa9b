// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package main

import (
	"archive/zip"
	"bytes"
	"strings"
	"testing"
)

// release returns a small release, signed by a new key.
func release(t *testing.T) *checker {
	t.Helper()
	var archive bytes.Buffer
	z := zip.NewWriter(&archive)
	w, err := z.Create("file")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("content\n")); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	a := &assets{version: "1.2.3", os: "linux", arch: "amd64", files: map[string][]byte{}}
	a.files[a.archive()] = archive.Bytes()
	a.files[a.manifest()] = []byte(`{"version": 1, "metadata": {"protocol_versions": ["6.0"]}}`)
	a.files[a.sums()] = []byte(digest(a.files[a.archive()]) + "  " + a.archive() + "\n" + digest(a.files[a.manifest()]) + "  " + a.manifest() + "\n")
	key, err := newKey("publisher")
	if err != nil {
		t.Fatal(err)
	}
	signed, err := a.signed(key)
	if err != nil {
		t.Fatal(err)
	}
	return &checker{release: signed, key: key}
}

// A good release passes, and each fault is refused for its own reason.
func TestVerify(t *testing.T) {
	c := release(t)
	if err := c.release.verify(c.key); err != nil {
		t.Fatal(err)
	}
	faults, err := c.release.faults(c.key)
	if err != nil {
		t.Fatal(err)
	}
	reasons := map[string]string{
		"a signature by another key":            "is no signature of",
		"an armored signature":                  "is armored",
		"no signature":                          "is no signature of",
		"a manifest that is not listed":         "does not list",
		"a manifest of another protocol":        "the protocols [5.0]",
		"an archive that is not the one signed": "another checksum",
	}
	if len(faults) != len(reasons) {
		t.Errorf("%d faults, want %d", len(faults), len(reasons))
	}
	for fault, a := range faults {
		if err := a.verify(c.key); err == nil || !strings.Contains(err.Error(), reasons[fault]) {
			t.Errorf("%s: %v, want %q", fault, err, reasons[fault])
		}
	}
}

func TestParseSumsRefusesWhatIsNoList(t *testing.T) {
	sum := digest(nil)
	for _, text := range []string{"", "x  file\n", sum + " file\n", sum + "  \n", sum + "  ../file\n", sum[2:] + "  file\n", sum + "  file\n" + sum + "  file\n"} {
		if listed, err := parseSums([]byte(text)); err == nil {
			t.Errorf("%q: no error, and %v", text, listed)
		}
	}
}

// The value is what `sha256sum file | sha256sum` gives, in base64: a packed
// and an unpacked provider have the same h1: hash.
func TestDirHash(t *testing.T) {
	c := release(t)
	got, err := dirHash(c.release.files[c.release.archive()])
	if err != nil {
		t.Fatal(err)
	}
	if want := "h1:B8cAFt+MUouUYci8PoDccNTFeQyKIw4pL2Qgj7bbZv0="; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// What is damaged differs, and a reason is found in Terraform's boxes.
func TestTampering(t *testing.T) {
	c := release(t)
	if bytes.Equal(c.damaged(), c.release.files[c.release.archive()]) {
		t.Error("the damaged archive is intact")
	}
	if bytes.Equal(c.wrongSums(), c.release.files[c.release.sums()]) {
		t.Error("the wrong checksums are right")
	}
	for _, hash := range []string{"zh:00", "h1:00"} {
		if got := spoilHash(hash); got[:3] != hash[:3] {
			t.Errorf("%s was spoilt into %s", hash, got)
		}
	}
	if !saysOneOf("│ archive has\n│ incorrect checksum", []string{"archive has incorrect checksum"}) {
		t.Error("a reason that is broken into lines is not found")
	}
	if saysOneOf("│ no such host", []string{"archive has incorrect checksum"}) {
		t.Error("another reason is taken for the one that is meant")
	}
}
