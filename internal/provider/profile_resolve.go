// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"context"
	"strings"

	"github.com/hashicorp/terraform-plugin-framework/diag"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/profile"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// isDocument tells a profile document from a name.
func isDocument(text string) bool { return strings.HasPrefix(strings.TrimSpace(text), "{") }

// profile returns the profile that a text means: a document is one, a name is
// looked up in the libraries and among the built-in profiles.
func (s *session) profile(_ context.Context, text string) (sdk.Profile, error) {
	if isDocument(text) {
		return sandbox.ParseDocument(text)
	}
	if s.deferred() {
		return sdk.Profile{}, sdk.Errorf(sdk.ErrUnreachable, "where profile names are looked up is not known yet")
	}
	runtime, err := s.open()
	if err != nil {
		return sdk.Profile{}, err
	}
	found, err := profile.Store{Dirs: runtime.Config.ProfileStore(s.getenv)}.Resolve(text)
	if err != nil {
		return sdk.Profile{}, err
	}
	return found, sandbox.ProfileError(sandbox.ValidateProfile(found))
}

// checkProfileText refuses a text that can't be a profile.
func checkProfileText(text string, diags *diag.Diagnostics, at blame) {
	if isDocument(text) {
		_, err := sandbox.ParseDocument(text)
		addError(diags, "Invalid profile", err, at)
	}
}

// published returns a profile as the library holds it. The library reads
// relative paths from its own directory, Terraform from where it runs.
func published(p sdk.Profile) sdk.Profile { return profile.MapPaths(p, absolute) }
