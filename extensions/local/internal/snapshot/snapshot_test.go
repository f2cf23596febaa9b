// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package snapshot

import (
	"encoding/json"
	"path/filepath"
	"reflect"
	"testing"
)

// FuzzDecode holds the manifest's parser to its contract: it never panics,
// names no file outside of the snapshot's directory, and reads what it wrote
// as it was.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"format":1,"id":"snp-00000000000000000000","kind":"memory","files":[{"name":"checkpoint.img","size":1,"sha256":""}],"host":{"cpu":["fpu"]},"spec":{}}`))
	f.Add([]byte(`{"format":1,"files":[{"name":"../../etc/passwd","size":-1}]}`))
	f.Add([]byte(`{"format":1,"image":"../x","lost":["a"],"process":{"UID":4294967295}}`))
	f.Add([]byte(`{"format":2}`))
	f.Add([]byte(`{"format":1,"created_at":"9999-12-31T23:59:59.999999999Z"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := Decode(data)
		if err != nil {
			return
		}
		dir := t.TempDir()
		for _, file := range m.Files {
			if filepath.Dir(filepath.Join(dir, file.Name)) != dir || file.Size < 0 {
				t.Errorf("accepted file %q of %d bytes", file.Name, file.Size)
			}
		}
		if m.Image != "" && filepath.Base(m.Image) != m.Image {
			t.Errorf("accepted image %q", m.Image)
		}
		_ = m.Differences(ThisHost())
		_, _, _ = m.Digest(), m.Size(), m.CheckFiles(dir)
		again, err := json.Marshal(m)
		if err != nil {
			return // a time that JSON has no form for
		}
		back, err := Decode(again)
		if err != nil {
			t.Fatalf("what was written can't be read: %v", err)
		}
		third, err := json.Marshal(back)
		if err != nil || !reflect.DeepEqual(again, third) {
			t.Errorf("read again it is\n%s\nand was\n%s", third, again)
		}
	})
}
