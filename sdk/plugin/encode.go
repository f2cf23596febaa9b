// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/plugin/internal/pb"
)

// encodeTime returns nil for the zero time, so that "not set" survives.
func encodeTime(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func encodeDuration(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

// encodeText makes a text for people fit to travel: a protobuf string has to
// be UTF-8, and output of a failed command that is quoted in a reason may not be.
func encodeText(s string) string {
	return cut(strings.ToValidUTF8(s, "\uFFFD"))
}

// cut bounds a text for people.
func cut(s string) string {
	if len(s) <= maxText {
		return s
	}
	return strings.ToValidUTF8(s[:maxText], "") + "…"
}

func encodeTexts(list []string) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = encodeText(s)
	}
	return out
}

func encodeTarget(t sdk.Target) *pb.Target {
	return &pb.Target{Id: t.ID, Ref: t.Ref, Fleet: t.Fleet}
}

func encodeEvent(e sdk.EventRef) *pb.EventRef {
	if e == (sdk.EventRef{}) {
		return nil
	}
	return &pb.EventRef{LedgerId: e.LedgerID, Sequence: e.Sequence, Hash: e.Hash}
}

func encodeLease(l sdk.Lease) *pb.Lease {
	return &pb.Lease{
		ExpiresAt: encodeTime(l.ExpiresAt), MaxExpiresAt: encodeTime(l.MaxExpiresAt), Generation: l.Generation,
		Claimed: l.Claimed, ClaimHolder: l.ClaimHolder, Event: encodeEvent(l.Event),
	}
}

func encodeProgress(p sdk.Progress) *pb.Progress {
	return &pb.Progress{Phase: encodeText(p.Phase), Message: encodeText(p.Message), Done: p.Done, Total: p.Total}
}

func encodeSandbox(s sdk.Sandbox) (*pb.Sandbox, error) {
	identity, err := encodeDocument("identity", s.Identity)
	if err != nil {
		return nil, err
	}
	profile, err := encodeDocument("profile", s.Profile)
	if err != nil {
		return nil, err
	}
	out := &pb.Sandbox{
		Id: s.ID, Ref: s.Ref, Status: string(s.Status), Reason: encodeText(s.Reason), IdentityJson: identity,
		Incarnation: s.Incarnation, Lease: encodeLease(s.Lease), CreatedAt: encodeTime(s.CreatedAt),
		Endpoints: s.Endpoints, OnExpiry: string(s.OnExpiry), ExpirySnapshotId: s.ExpirySnapshotID, ProfileJson: profile,
		IdleTimeout: encodeDuration(s.IdleTimeout), ExpirySnapshotTtl: encodeDuration(s.ExpirySnapshotTTL), PausedTtl: encodeDuration(s.PausedTTL),
		IdleExpiresAt: encodeTime(s.IdleExpiresAt), EndReason: string(s.EndReason), ExpirySnapshotError: encodeText(s.ExpirySnapshotError),
	}
	for _, guard := range s.Guards {
		out.Guards = append(out.Guards, string(guard))
	}
	return out, nil
}

func encodeSnapshot(s sdk.Snapshot) (*pb.SnapshotRecord, error) {
	identity, err := encodeDocument("identity", s.Identity)
	if err != nil {
		return nil, err
	}
	profile, err := encodeDocument("profile", s.Profile)
	if err != nil {
		return nil, err
	}
	return &pb.SnapshotRecord{
		Id: s.ID, Ref: s.Ref, SandboxId: s.SandboxID, Kind: string(s.Kind), IdentityJson: identity,
		CreatedAt: encodeTime(s.CreatedAt), ExpiresAt: encodeTime(s.ExpiresAt), Size: s.Size, Digest: s.Digest,
		ContainsSecrets: s.ContainsSecrets, ProfileJson: profile, Lost: encodeTexts(s.Lost),
	}, nil
}

func encodeCapabilities(c sdk.Capabilities) map[string]*pb.Guarantee {
	out := make(map[string]*pb.Guarantee, len(c))
	for feature, g := range c {
		out[string(feature)] = &pb.Guarantee{Class: string(g.Class), Reason: encodeText(g.Reason), DependsOnMachine: g.DependsOnMachine}
	}
	return out
}

func encodeCreate(o sdk.CreateOptions) (*pb.CreateOptions, error) {
	identity, err := encodeDocument("identity", o.Identity)
	if err != nil {
		return nil, err
	}
	profile, err := encodeDocument("profile", o.Profile)
	if err != nil {
		return nil, err
	}
	if err := validTexts("env", o.Env); err != nil {
		return nil, err
	}
	out := &pb.CreateOptions{
		Id: o.ID, IdentityJson: identity, ProfileJson: profile, ExpiresAt: encodeTime(o.ExpiresAt),
		MaxExpiresAt: encodeTime(o.MaxExpiresAt), OnExpiry: string(o.OnExpiry), Env: o.Env, Event: encodeEvent(o.Event),
		IdleTimeout: encodeDuration(o.IdleTimeout), ExpirySnapshotTtl: encodeDuration(o.ExpirySnapshotTTL), PausedTtl: encodeDuration(o.PausedTTL),
	}
	if o.Secrets != nil {
		out.Secrets = make(map[string][]byte, len(o.Secrets))
		for name, secret := range o.Secrets {
			out.Secrets[name] = []byte(secret)
		}
	}
	return out, nil
}

// encodeDocument returns the JSON form of a document that a caller handed
// over. What JSON can't hold unchanged is refused.
func encodeDocument(path string, document any) ([]byte, error) {
	encoded, err := json.Marshal(document)
	if err != nil {
		return nil, sdk.Invalid(path, "can't be encoded: %v", err)
	}
	if replaced(encoded) {
		return nil, sdk.Invalid(path, "contains text that is not valid UTF-8")
	}
	return encoded, nil
}

// validTexts checks the texts of a map.
func validTexts(path string, texts map[string]string) error {
	for name, text := range texts {
		if err := validText(path, name); err != nil {
			return err
		}
		if err := validText(path+"."+name, text); err != nil {
			return err
		}
	}
	return nil
}

// validText checks that a text can travel unchanged.
func validText(path, text string) error {
	if !utf8.ValidString(text) {
		return sdk.Invalid(path, "is not valid UTF-8")
	}
	return nil
}

// replaced reports whether encoding/json put U+FFFD where a string was not
// UTF-8: it writes that one as an escape, and a U+FFFD of the string as it is.
func replaced(encoded []byte) bool {
	for {
		i := bytes.IndexByte(encoded, '\\')
		if i < 0 {
			return false
		}
		if bytes.HasPrefix(encoded[i:], []byte(`\ufffd`)) {
			return true
		}
		encoded = encoded[i+2:]
	}
}
