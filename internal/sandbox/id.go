// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sandbox

import (
	"crypto/rand"
	"encoding/base32"
	"encoding/binary"
	"fmt"
	"time"
)

// The id prefixes.
const (
	IDPrefix         = "sbx-"
	SnapshotIDPrefix = "snp-"
)

// idEncoding keeps the order of the bytes: the alphabet is in ASCII order
// (RFC 4648 "extended hex", lower case).
var idEncoding = base32.NewEncoding("0123456789abcdefghijklmnopqrstuv").WithPadding(base32.NoPadding)

var idPattern = pattern("^(sbx|snp)-[0-9a-v]{20}$")

// NewID returns a new sandbox id: "sbx-" and 20 characters that sort by
// creation time. 48 bits are milliseconds, 52 bits are random.
func NewID(now time.Time) string { return IDPrefix + newSuffix(now) }

// NewSnapshotID returns a new snapshot id, made like a sandbox's.
func NewSnapshotID(now time.Time) string { return SnapshotIDPrefix + newSuffix(now) }

func newSuffix(now time.Time) string {
	var raw [13]byte
	var stamp [8]byte
	binary.BigEndian.PutUint64(stamp[:], uint64(now.UnixMilli()))
	copy(raw[:6], stamp[2:])
	// crypto/rand.Read never fails: it ends the program where the system has no randomness.
	_, _ = rand.Read(raw[6:])
	return idEncoding.EncodeToString(raw[:])[:20]
}

// ParseID checks a sandbox id.
func ParseID(id string) error { return parseID(id, IDPrefix, "sandbox") }

// ParseSnapshotID checks a snapshot id.
func ParseSnapshotID(id string) error { return parseID(id, SnapshotIDPrefix, "snapshot") }

func parseID(id, prefix, noun string) error {
	if !idPattern().MatchString(id) || id[:len(prefix)] != prefix {
		return fmt.Errorf("%q is not a %s id (want %s and 20 characters of 0-9, a-v)", clip(id), noun, prefix)
	}
	return nil
}

// IDTime returns the creation time that a valid id carries, to the
// millisecond.
func IDTime(id string) (time.Time, error) {
	if !idPattern().MatchString(id) {
		return time.Time{}, fmt.Errorf("%q is not a sandbox or snapshot id", clip(id))
	}
	raw, err := idEncoding.DecodeString(id[4 : 4+16])
	if err != nil {
		return time.Time{}, fmt.Errorf("%q is not a sandbox or snapshot id: %w", clip(id), err)
	}
	var stamp [8]byte
	copy(stamp[2:], raw[:6])
	return time.UnixMilli(int64(binary.BigEndian.Uint64(stamp[:]))).UTC(), nil
}

// clip bounds outside text in a message.
func clip(s string) string {
	const most = 80
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}
