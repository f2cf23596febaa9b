// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package repo

import (
	"slices"
	"testing"
)

func TestCleanEnvDropsWhatIsTheUsersOwn(t *testing.T) {
	for _, kv := range [][2]string{{"SANDBOXER_FLEET", "mine"}, {"TF_LOG", "TRACE"}, {"SANDBOXER_TEST_FULL", "1"}, {"OTHER", "x"}} {
		t.Setenv(kv[0], kv[1])
	}
	env := CleanEnv()
	for kv, kept := range map[string]bool{"SANDBOXER_FLEET=mine": false, "TF_LOG=TRACE": false, "SANDBOXER_TEST_FULL=1": true, "OTHER=x": true} {
		if slices.Contains(env, kv) != kept {
			t.Errorf("%s: kept is %v", kv, !kept)
		}
	}
}
