//go:build linux

package extension_test

import (
	"strings"
	"testing"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

func TestASandboxLivesAndDies(t *testing.T) {
	e := backend(t)
	s := create(t, e, options(sdk.Profile{Name: "shell"}))
	if s.Status != sdk.StatusReady {
		t.Errorf("status %s (%s), want ready", s.Status, s.Reason)
	}
	if got := run(t, e, s.ID, "sh", "-c", "echo $((6*7))"); strings.TrimSpace(got) != "42" {
		t.Errorf("output %q", got)
	}
}
