// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package ledger

// A fast reader for lines in exactly the form that encodeLine gives them.
// Listing reads every line of every log, and the general decoder would take
// most of that time. Whatever differs (another order of fields, an unknown
// field, a null) is left to the general decoder; FuzzLine holds that both
// say the same.

import (
	"bytes"
	"encoding/json"
	"strconv"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// decodeFast reads a line; ok is false when it is not in the usual form.
func decodeFast(line []byte) (w wire, ok bool) {
	c := cursor{rest: line, ok: true}
	c.open()
	number(&c, "v", &w.Version)
	text(&c, "ledger_id", &w.LedgerID)
	text(&c, "id", &w.ID)
	number(&c, "sequence", &w.Sequence)
	c.time("time", &w.Time)
	text(&c, "type", &w.Type)
	text(&c, "reason", &w.Reason)
	text(&c, "message", &w.Message)
	text(&c, "actor", &w.Actor)
	text(&c, "run", &w.Run)
	text(&c, "fleet", &w.Fleet)
	text(&c, "backend", &w.Backend)
	text(&c, "ref", &w.Ref)
	number(&c, "incarnation", &w.Incarnation)
	text(&c, "status", &w.Status)
	c.lease("lease", &w.Lease)
	c.time("until", &w.Until)
	text(&c, "profile_revision", &w.ProfileRevision)
	text(&c, "snapshot_id", &w.SnapshotID)
	if raw := c.object("intent"); raw != nil {
		w.Intent = &Intent{}
		c.ok = c.ok && json.Unmarshal(raw, w.Intent) == nil
	}
	if raw := c.object("data"); raw != nil {
		w.Data = bytes.Clone(raw)
		c.ok = c.ok && json.Valid(raw)
	}
	text(&c, "prev_hash", &w.PrevHash)
	text(&c, "hash", &w.Hash)
	c.close()
	return w, c.ok && len(c.rest) == 0
}

// cursor goes through an object field by field. A field that does not come
// next is taken as absent, so anything out of order is seen at the end.
type cursor struct {
	rest  []byte
	first bool // no field of the object has been read
	ok    bool
}

func (c *cursor) literal(s string) bool {
	if len(c.rest) < len(s) || string(c.rest[:len(s)]) != s {
		return false
	}
	c.rest = c.rest[len(s):]
	return true
}

func (c *cursor) open() { c.ok, c.first = c.ok && c.literal("{"), true }

func (c *cursor) close() { c.ok = c.ok && c.literal("}") }

// key steps to the value of a field when it is the next one.
func (c *cursor) key(name string) bool {
	if !c.ok {
		return false
	}
	before := c.rest
	if (c.first || c.literal(",")) && c.literal(`"`) && c.literal(name) && c.literal(`":`) {
		c.first = false
		return true
	}
	c.rest = before
	return false
}

// token returns a string's bytes between its quotes; plain is true when they
// are what they mean.
func (c *cursor) token() (raw []byte, plain bool) {
	if len(c.rest) == 0 || c.rest[0] != '"' {
		c.ok = false
		return nil, false
	}
	plain = true
	for i := 1; i < len(c.rest); i++ {
		switch b := c.rest[i]; {
		case b == '"':
			raw, c.rest = c.rest[1:i], c.rest[i+1:]
			return raw, plain
		case b == '\\':
			i++
			plain = false
		case b < ' ' || b > '~':
			plain = false
		}
	}
	c.ok = false
	return nil, false
}

func text[T ~string](c *cursor, name string, into *T) {
	if !c.key(name) {
		return
	}
	whole := c.rest
	raw, plain := c.token()
	switch {
	case !c.ok:
	case plain:
		*into = T(raw)
	default:
		var s string
		c.ok = json.Unmarshal(whole[:len(raw)+2], &s) == nil
		*into = T(s)
	}
}

func number[T ~int | ~int64](c *cursor, name string, into *T) {
	if !c.key(name) {
		return
	}
	end := 0
	for end < len(c.rest) && c.rest[end] >= '0' && c.rest[end] <= '9' {
		end++
	}
	n, err := strconv.ParseInt(string(c.rest[:end]), 10, 64)
	// JSON has no number that begins with a zero but zero.
	c.ok = err == nil && (end == 1 || c.rest[0] != '0')
	*into, c.rest = T(n), c.rest[end:]
}

func (c *cursor) time(name string, into *time.Time) {
	if c.key(name) {
		raw, plain := c.token()
		c.ok = c.ok && plain && into.UnmarshalText(raw) == nil
	}
}

func (c *cursor) lease(name string, into **sdk.Lease) {
	if !c.key(name) {
		return
	}
	var l sdk.Lease
	c.open()
	c.time("expires_at", &l.ExpiresAt)
	c.time("max_expires_at", &l.MaxExpiresAt)
	number(c, "generation", &l.Generation)
	if c.key("claimed") {
		if l.Claimed = c.literal("true"); !l.Claimed {
			c.ok = c.literal("false")
		}
	}
	text(c, "claim_holder", &l.ClaimHolder)
	if c.key("event") {
		c.open()
		text(c, "ledger_id", &l.Event.LedgerID)
		number(c, "sequence", &l.Event.Sequence)
		text(c, "hash", &l.Event.Hash)
		c.close()
		c.first = false
	}
	c.close()
	c.first = false
	*into = &l
}

// object returns an object as it stands, unchecked; nil when it is absent.
func (c *cursor) object(name string) []byte {
	if !c.key(name) {
		return nil
	}
	depth, quoted := 0, false
	for i := 0; i < len(c.rest); i++ {
		switch b := c.rest[i]; {
		case quoted && b == '\\':
			i++
		case b == '"':
			quoted = !quoted
		case quoted:
		case b == '{' || b == '[':
			depth++
		case b == '}' || b == ']':
			depth--
		}
		if depth == 0 {
			if c.ok = i > 0; !c.ok {
				return nil // something else than an object
			}
			raw := c.rest[:i+1]
			c.rest = c.rest[i+1:]
			return raw
		}
	}
	c.ok = false
	return nil
}
