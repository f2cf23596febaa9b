// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package record

import (
	"encoding/json"
	"errors"
	"reflect"
	"testing"
)

// FuzzDecode holds the record's parser to its contract: it never panics, it
// refuses what a newer program wrote by that name, and what it accepts
// survives being written again.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"format":1,"id":"sbx-00000000000000000000","status":"ready","lease":{"expires_at":"2031-05-06T07:08:09Z","generation":1},"ports":[{"name":"web","guest":80,"host":1}]}`))
	f.Add([]byte(`{"format":2,"id":1}`))
	f.Add([]byte(`{"format":0}`))
	f.Add([]byte(`{"format":1,"profile":{"limits":null,"files":{"":{}}},"supervisor":{"pid":-1,"boot":"x"}}`))
	f.Add([]byte(`{"format":1,"uid":9223372036854775807,"secrets":["\u0000"]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := Decode(data)
		var version struct {
			Format int `json:"format"`
		}
		if json.Unmarshal(data, &version) == nil && version.Format > Format && !errors.Is(err, ErrNewer) {
			t.Errorf("format %d: %v, want ErrNewer", version.Format, err)
		}
		if err != nil {
			return
		}
		again, err := json.Marshal(r)
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
