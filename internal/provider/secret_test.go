// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package provider

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-log/tflogtest"
	"github.com/hashicorp/terraform-plugin-log/tfsdklogtest"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/backend/saasstub"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/lifecycle"
)

// A write-only value reaches the sandbox, and nothing else: no plan, no
// state, no private state, no diagnostic, no log line, no file of the ledger.
func TestSecretsAreNowhereElse(t *testing.T) {
	const canary = "canary-7d1f"
	const token = "token-of-the-backend-93ab"
	w := newWorld(t)
	w.block["backends"].(object)["other"] = object{"extension": "unused", "config_json": "{\"token\": \"" + token + "\"}"}
	w.block["backend"] = "cloud"
	var log bytes.Buffer
	tf := w.terraform()
	// The provider's own log and the framework's, both at trace.
	tf.ctx = tfsdklogtest.RootLogger(tflogtest.RootLogger(context.Background(), &log), &log)
	seen := func(what string, content string) {
		t.Helper()
		for _, secret := range []string{canary, token} {
			if strings.Contains(content, secret) {
				t.Errorf("%s holds %s", what, secret)
			}
		}
	}
	c := sandboxOf(object{"ttl": "1h", "secrets_wo": object{"TOKEN": canary}, "secrets_wo_version": 1})
	p := tf.planned(tfSandbox, c, nil)
	seen("the plan", p.planned.String()+string(p.private))
	s, diags := tf.apply(p)
	tf.clean(diags)
	seen("the state", s.value.String()+string(s.private)+show(diags))

	var out bytes.Buffer
	result, err := w.elsewhere().Exec(tf.ctx, s.text("id"), lifecycle.ExecOptions{Command: []string{"cat", "/run/secrets/TOKEN"}, Stdout: &out})
	if err != nil || result.ExitCode != 0 || !strings.Contains(out.String(), canary) {
		t.Errorf("the sandbox has %q: %v", out.String(), err)
	}

	// Failures talk, too.
	c["ttl"] = "2h"
	w.cloud.Inject(saasstub.Fault{Call: saasstub.CallUpdateBox, Lie: saasstub.Broken})
	_, diags = tf.apply(tf.planned(tfSandbox, c, s))
	wantError(t, errorsOf(diags), "")
	seen("a diagnostic", show(diags))
	w.cloud.Heal()
	bad := sandboxOf(object{"secrets_wo": object{"not a name": canary}, "secrets_wo_version": 1})
	failed := tf.plan(tfSandbox, bad, nil)
	wantError(t, failed.errors, "secrets_wo")
	seen("a diagnostic", show(failed.errors))
	if left, diags := tf.destroy(s); left != nil {
		t.Error(show(diags))
	}
	seen("the log", log.String())
	if !strings.Contains(log.String(), s.text("id")) {
		t.Error("the log says nothing")
	}
	err = filepath.WalkDir(w.dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		seen(path, string(content))
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
