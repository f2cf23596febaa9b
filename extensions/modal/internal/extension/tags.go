// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package extension

// The tags of a sandbox: what is fixed at the create, and the lease.

import (
	"bytes"
	"compress/flate"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// The names of the tags. How long a value may be, and of which characters, the
// vendor does not say: they are short, and of letters, digits, - and _.
const (
	tagID     = "sandboxer-id"
	tagFleet  = "sandboxer-fleet" // see fleetKey
	tagNonce  = "sandboxer-nonce" // of the create
	tagPhase  = "sandboxer-phase"
	tagLease  = "sandboxer-lease"  // in pieces, as the object is
	tagObject = "sandboxer-object" // NAME is the number of pieces, NAME-0 … are they
	tagHelper = "sandboxer-helper" // a sandbox that only lives to prolong a snapshot
)

// The phases of a sandbox.
const (
	phaseCreating = "creating" // what it is given is not in it yet
	phaseReady    = "ready"
)

// object is what is fixed at the create.
type object struct {
	Identity    sdk.Identity  `json:"identity"`
	Profile     sdk.Profile   `json:"profile"`
	OnExpiry    sdk.OnExpiry  `json:"on_expiry"`
	IdleTimeout time.Duration `json:"idle_timeout,omitempty"`
	PausedTTL   time.Duration `json:"paused_ttl,omitempty"`
	Secrets     bool          `json:"secrets,omitempty"` // it was given some
	EndsAt      time.Time     `json:"ends_at"`           // by the vendor's lifetime
}

const (
	// pieceSize is how long one value of a tag is.
	pieceSize = 200
	// maxPieces bounds what is read, maxObject what comes of it.
	maxPieces = 500
	maxObject = 1 << 20
)

// pack puts a value into tags.
func pack(tags map[string]string, name string, value any) {
	plain, _ := json.Marshal(value) // the types of this package always encode
	var packed bytes.Buffer
	w, _ := flate.NewWriter(&packed, flate.BestCompression) // the level is a valid one
	_, _ = w.Write(plain)                                   // to memory
	_ = w.Close()
	text := base64.RawURLEncoding.EncodeToString(packed.Bytes())
	n := 0
	for ; text != ""; n++ {
		piece := text[:min(len(text), pieceSize)]
		tags[name+"-"+strconv.Itoa(n)], text = piece, text[len(piece):]
	}
	tags[name] = strconv.Itoa(n)
}

// drop removes a value from tags.
func drop(tags map[string]string, name string) {
	delete(tags, name)
	for at := range tags {
		if strings.HasPrefix(at, name+"-") {
			delete(tags, at)
		}
	}
}

// unpack reads a value from tags. What is there but can't be read is an error,
// never a guess.
func unpack(tags map[string]string, name string, into any) error {
	n, err := strconv.Atoi(tags[name])
	if err != nil || n < 1 || n > maxPieces {
		return fmt.Errorf("tag %s is %.40q, and should be a number of pieces", name, tags[name])
	}
	var text strings.Builder
	for i := range n {
		piece, ok := tags[name+"-"+strconv.Itoa(i)]
		if !ok {
			return fmt.Errorf("tag %s-%d is missing", name, i)
		}
		text.WriteString(piece)
	}
	packed, err := base64.RawURLEncoding.DecodeString(text.String())
	if err != nil {
		return fmt.Errorf("tag %s: %w", name, err)
	}
	plain, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(packed)), maxObject))
	if err == nil {
		err = json.Unmarshal(plain, into)
	}
	if err != nil {
		return fmt.Errorf("tag %s: %w", name, err)
	}
	return nil
}

// isOurs reports whether tags are of a fleet's sandbox, and of which.
func isOurs(tags map[string]string, fleet string) bool {
	return tags[tagFleet] == fleetKey(fleet) && sdk.IsSandboxID(tags[tagID])
}

// found is a sandbox of the vendor's and what it means.
type found struct {
	vendor  vendorSandbox
	object  object
	lease   sdk.Lease
	sandbox sdk.Sandbox
}

// alive refuses what can't be used now.
func (f found) alive() error {
	switch f.sandbox.Status {
	case sdk.StatusReady, sdk.StatusCreating:
		return nil
	case sdk.StatusExpired:
		return sdk.Expired(f.lease, "sandbox %s has expired: %s", f.sandbox.ID, f.sandbox.Reason)
	}
	return sdk.Conflict(f.lease, "sandbox %s is %s", f.sandbox.ID, f.sandbox.Status)
}

// meaning reads the tags of a sandbox that is the fleet's and runs.
func (e *Extension) meaning(v vendorSandbox, fleet string) (found, error) {
	f := found{vendor: v}
	if err := unpack(v.tags, tagObject, &f.object); err != nil {
		return f, fmt.Errorf("modal sandbox %s: %w", v.ref, err)
	}
	if err := unpack(v.tags, tagLease, &f.lease); err != nil {
		return f, fmt.Errorf("modal sandbox %s: %w", v.ref, err)
	}
	o := f.object
	if o.Identity.ID != v.tags[tagID] || o.Identity.Fleet != fleet {
		return f, fmt.Errorf("modal sandbox %s: its tags name %.40q of fleet %.40q and %.40q", v.ref, o.Identity.ID, o.Identity.Fleet, v.tags[tagID])
	}
	f.sandbox = sdk.Sandbox{
		ID: o.Identity.ID, Ref: v.ref, Identity: o.Identity, Incarnation: o.Identity.Incarnation, CreatedAt: o.Identity.CreatedAt, Lease: f.lease,
		OnExpiry: o.OnExpiry, IdleTimeout: o.IdleTimeout, PausedTTL: o.PausedTTL, Profile: o.Profile,
		// The vendor ends it at the lease's maximum, whatever happens here.
		Guards: []sdk.Guard{sdk.GuardBackend},
	}
	f.sandbox.Status, f.sandbox.Reason = e.statusOf(v, f.lease)
	if f.sandbox.Status == sdk.StatusExpired {
		f.sandbox.EndReason = sdk.EndDeadline
	}
	return f, nil
}

func (e *Extension) statusOf(v vendorSandbox, lease sdk.Lease) (sdk.Status, string) {
	switch {
	case lease.Claimed:
		return sdk.StatusDestroying, "claimed by " + lease.ClaimHolder
	case lease.Expired(e.now()):
		return sdk.StatusExpired, "the deadline passed at " + lease.ExpiresAt.UTC().Format(time.RFC3339)
	case v.tags[tagPhase] != phaseReady:
		return sdk.StatusCreating, ""
	}
	return sdk.StatusReady, ""
}
