// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package conformance

// Secrets: where they are, and where they must not be.

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

func secretRules() []Rule {
	secrets := []sdk.Feature{sdk.FeatureSecretFiles}
	return []Rule{
		{ID: "secrets/files", Title: "each secret is a file that only its user reads, or is refused", about: secrets, try: secretsFiles},
		{ID: "secrets/hidden", Title: "no secret is in an environment or in what is shown", Features: append(secrets, sdk.FeatureExec), commands: []Command{CommandEnviron, CommandRead}, try: secretsHidden},
		{ID: "secrets/snapshots", Title: "a snapshot shows no secret, and says whether it holds some", Features: append(secrets, sdk.FeatureMemorySnapshot), try: secretsSnapshots},
	}
}

const secretName, secretValue = "CONFORMANCE_TOKEN", "canary-7c1d5b0e93"

func (c *check) secretive() sdk.CreateOptions {
	opts := c.creation()
	opts.Secrets = map[string]sdk.Secret{secretName: secretValue}
	return opts
}

func secretsFiles(c *check) {
	if !c.claims(sdk.FeatureSecretFiles) {
		c.refused(c.secretive(), sdk.FeatureSecretFiles, "secrets")
		return
	}
	_, target := c.ready(c.secretive())
	const name = "/run/secrets/" + secretName
	_, noRead := c.commands().Lacks[CommandRead]
	if c.claims(sdk.FeatureExec) && !noRead {
		got, err := c.execute(c.kit.a, sdk.ExecOptions{Target: target, Command: c.commands().Read(name)})
		c.failIf(err != nil || got.stdout != secretValue, "reading %s: exit code %d, %v, the right content: %v", name, got.ExitCode, err, got.stdout == secretValue)
	}
	_, noEnv := c.commands().Lacks[CommandEnv]
	if c.claims(sdk.FeatureExec) && !noEnv {
		got := c.exec(target, c.commands().Env(secretName+"_FILE"))
		c.failIf(got != name+"\n", "%s_FILE is %q, not %q", secretName, got, name)
	}
	if c.claims(sdk.FeatureFiles) {
		out, err := c.copyOut(target, name)
		c.failIf(err != nil || out[secretName].content != secretValue, "copying %s out: %v, the right content: %v", name, err, out[secretName].content == secretValue)
		c.failIf(out[secretName].mode&0o077 != 0, "%s has mode %o", name, out[secretName].mode)
		c.note("%s has mode %o", name, out[secretName].mode)
	}
}

func secretsHidden(c *check) {
	opts := c.secretive()
	opts.Profile.Command = c.commands().Environ() // so that the log would show it
	_, target := c.create(opts)
	_, other := c.ready(c.secretive())
	for what, text := range map[string]string{
		"the environment of a command":    c.exec(other, c.commands().Environ()),
		"what Get shows":                  shown(c.get(c.kit.b, target)),
		"what Get shows of the other one": fmt.Sprintf("%+v", c.get(c.kit.b, other)),
		"what List shows":                 fmt.Sprintf("%+v", c.list(c.kit.b, target.Fleet)),
	} {
		c.failIf(strings.Contains(text, secretValue), "the secret is in %s", what)
	}
	// Where there is one: the environment that the first process began with.
	got, err := c.execute(c.kit.a, sdk.ExecOptions{Target: other, Command: c.commands().Read("/proc/1/environ")})
	c.need(err, "read the environment of the first process")
	c.failIf(strings.Contains(got.stdout, secretValue), "the secret is in the environment of the first process")
	if c.claims(sdk.FeatureLogs) {
		c.failIf(strings.Contains(c.logs(sdk.LogsOptions{Target: target}), secretValue), "the secret is in the environment of the main process")
	}
}

func secretsSnapshots(c *check) {
	_, target := c.ready(c.secretive())
	s := c.snapshot(target, sdk.SnapshotMemory)
	encoded, err := json.Marshal(s)
	c.need(err, "encode the snapshot")
	c.failIf(strings.Contains(string(encoded), secretValue), "the snapshot shows the secret")
	c.failIf(!s.ContainsSecrets, "a memory snapshot of a sandbox with secrets does not say that it contains them")
}
