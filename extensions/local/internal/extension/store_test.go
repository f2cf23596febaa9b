// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package extension_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

func TestAStateDirectoryThatOthersCanWriteIsRefused(t *testing.T) {
	state := stateDir(t)
	e := backendAt(t, state, time.Now)
	s := create(t, e, options(sdk.Profile{Name: "shell"}))
	for _, name := range []string{"", "local", "local/bin", "local/sandboxes"} {
		dir := filepath.Join(state, name)
		info, err := os.Stat(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, more := range []os.FileMode{0o020, 0o002, 0o022 | os.ModeSticky} {
			if err := os.Chmod(dir, info.Mode()|more); err != nil {
				t.Fatal(err)
			}
			_, err := e.Create(t.Context(), options(sdk.Profile{Name: "shell"}))
			var refusal *sdk.Error
			if !errors.Is(err, sdk.ErrInvalid) || !errors.As(err, &refusal) || refusal.Path != "state_dir" || refusal.Advice != "chmod go-w "+dir {
				t.Errorf("%q with %v: %v, want ErrInvalid on state_dir and what to do", name, more, err)
			}
			probed, err := e.Probe(t.Context(), sdk.ProbeOptions{})
			if err != nil || probed.Usable || !strings.Contains(probed.Reason, "chmod go-w ") {
				t.Errorf("%q with %v: probe %+v, %v", name, more, probed, err)
			}
		}
		if err := os.Chmod(dir, info.Mode()); err != nil {
			t.Fatal(err)
		}
	}
	run(t, e, s.ID, "true")
}
