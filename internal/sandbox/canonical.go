// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sandbox

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// MaxDocument bounds a profile document, in bytes.
const MaxDocument = 8 << 20

// Document returns the canonical JSON of a profile: fields in the order of
// the type, map keys sorted, no space, empty fields left out. Two profiles
// that mean the same have the same document.
func Document(p sdk.Profile) string {
	p = normalize(p)
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	// The type holds only strings, numbers, slices and maps of them: it always encodes.
	_ = encoder.Encode(p)
	return strings.TrimSuffix(out.String(), "\n")
}

// Revision returns the digest of a profile's canonical form, "sha256:…".
func Revision(p sdk.Profile) string {
	sum := sha256.Sum256([]byte(Document(p)))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// ProfileID returns the id of a profile: NAME@REVISION.
func ProfileID(p sdk.Profile) string { return p.Name + "@" + Revision(p) }

// ParseDocument reads a profile document in JSON, refuses fields that it
// does not know, and validates it.
func ParseDocument(document string) (sdk.Profile, error) {
	if len(document) > MaxDocument {
		return sdk.Profile{}, fmt.Errorf("the profile document is larger than %d MiB", MaxDocument>>20)
	}
	decoder := json.NewDecoder(strings.NewReader(document))
	decoder.DisallowUnknownFields()
	var p sdk.Profile
	if err := decoder.Decode(&p); err != nil {
		return sdk.Profile{}, fmt.Errorf("the profile document is not valid: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return sdk.Profile{}, errors.New("the profile document goes on after its end")
	}
	if err := ProfileError(ValidateProfile(p)); err != nil {
		return sdk.Profile{}, err
	}
	return normalize(p), nil
}

// ProfileError joins problems into one error, nil when there are none.
func ProfileError(found []Problem) error {
	var errs []error
	for _, problem := range found {
		errs = append(errs, sdk.Invalid(problem.Path, "%s", problem.Message))
	}
	return errors.Join(errs...)
}

// normalize drops what only says the default, so that it does not change the
// revision.
func normalize(p sdk.Profile) sdk.Profile {
	if p.Limits != nil && *p.Limits == (sdk.Limits{}) {
		p.Limits = nil
	}
	if p.Network != nil && len(p.Network.Allow) == 0 && (p.Network.Egress == "" || p.Network.Egress == sdk.EgressNone) {
		p.Network = nil
	}
	if p.TTL != nil && *p.TTL == (sdk.TTL{}) {
		p.TTL = nil
	}
	if p.OnExpiry == sdk.OnExpiryDestroy {
		p.OnExpiry = ""
	}
	if p.Publish == "loopback" {
		p.Publish = ""
	}
	return p
}
