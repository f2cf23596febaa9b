// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/plugin/internal/pb"
)

// FuzzMessages holds the decoders of what an extension, or a host, sends to
// their contract: they never panic, and what they accept has a known status,
// no negative number and no field without measure, and can be sent on.
func FuzzMessages(f *testing.F) {
	add := func(kind uint8, message proto.Message) {
		data, err := proto.Marshal(message)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(kind, data)
	}
	add(0, wellFormed())
	add(0, &pb.Sandbox{Id: "sbx-1", Status: "thriving", Incarnation: -1})
	add(1, &pb.SnapshotRecord{Id: "snp-1", Kind: "memory", Size: -1, Lost: []string{"all"}})
	add(2, &pb.CreateOptions{Id: "sbx-1", Secrets: map[string][]byte{"TOKEN": []byte("x")}, ProfileJson: []byte(`{"limits":{"pids":-1}}`)})
	add(3, &pb.DescribeResponse{Capabilities: map[string]*pb.Guarantee{"exec": {Class: "perfect"}, "": nil}})
	add(4, &pb.InspectResponse{Findings: []*pb.Finding{{Check: "mounts", Side: "outside", Verdict: "failed", Evidence: []string{"a mount"}}}})
	add(4, &pb.InspectResponse{Findings: []*pb.Finding{{Check: "metadata", Side: "outside", Verdict: "perfect"}}})
	f.Add(uint8(0), bytes.Repeat([]byte{0x0a, 0x80}, 8))
	f.Fuzz(func(t *testing.T, kind uint8, data []byte) {
		var d decoder
		switch kind % 5 {
		case 0:
			var message pb.Sandbox
			if proto.Unmarshal(data, &message) != nil {
				return
			}
			s := d.sandbox(&message)
			if d.err != nil {
				return
			}
			if s.ID == "" || s.Incarnation < 0 || s.Lease.Generation < 0 || s.IdleTimeout < 0 || len(s.Reason) > maxText || len(s.Guards) > maxEntries {
				t.Errorf("accepted %+v", s)
			}
			if _, err := encodeSandbox(s); err != nil {
				t.Errorf("what was accepted can't be sent on: %v", err)
			}
		case 1:
			var message pb.SnapshotRecord
			if proto.Unmarshal(data, &message) != nil {
				return
			}
			if s := d.snapshot(&message); d.err == nil && (s.ID == "" || s.Size < 0 || len(s.Lost) > maxEntries) {
				t.Errorf("accepted %+v", s)
			}
		case 2:
			var message pb.CreateOptions
			if proto.Unmarshal(data, &message) == nil {
				d.create(&message)
			}
		case 3:
			var message pb.DescribeResponse
			if proto.Unmarshal(data, &message) != nil {
				return
			}
			for feature, guarantee := range d.capabilities(message.GetCapabilities()) {
				if !guarantee.Class.Valid() {
					t.Errorf("feature %q has class %q", feature, guarantee.Class)
				}
			}
		case 4:
			var message pb.InspectResponse
			if proto.Unmarshal(data, &message) != nil {
				return
			}
			findings := d.findings(message.GetFindings())
			if d.err != nil {
				return
			}
			for _, f := range findings {
				if len(f.Check.Sides()) == 0 || !f.Verdict.Valid() || len(f.Evidence) > maxEntries {
					t.Errorf("accepted %+v", f)
				}
			}
		}
		if d.err != nil && len(d.err.Error()) > 2*maxText {
			t.Errorf("an error of %d bytes", len(d.err.Error()))
		}
	})
}
