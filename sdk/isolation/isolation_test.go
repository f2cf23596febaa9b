// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package isolation

import (
	"bytes"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// joined keeps what looks like a credential out of this file's own text, for
// those who search it.
func joined(parts ...string) string { return strings.Join(parts, "") }

var (
	githubToken = joined("ghp", "_", strings.Repeat("a1B2", 9))
	awsKey      = joined("AK", "IA", "ABCDEFGHIJKLMNOP")
	privateKey  = joined("-----BEGIN OPENSSH ", "PRIVATE KEY-----\nAAAA\n")
	webToken    = joined("ey", "JhbGciOiJIUzI1NiJ9.ey", "JzdWIiOiIxMjM0NTY3ODkwIn0.", "c2lnbmF0dXJlLXNpZ25hdHVyZQ")
	passwordURL = joined("https://ada:", "lovelace", "@git.example.com/x.git")
)

func TestWhatNamesACredential(t *testing.T) {
	for name, want := range map[string]bool{
		"AWS_SECRET_ACCESS_KEY": true, "GITHUB_TOKEN": true, "NPM_TOKEN": true, "db-password": true, "API_KEY": true, "OPENAI_API_KEY": true,
		"Vault.Token": true, "MYSQL_PWD": true, "DOCKER_AUTH_CONFIG": true, "JWT": true,
		"PATH": false, "PWD": false, "OLDPWD": false, "MAX_TOKENS": false, "TOKENIZERS_PARALLELISM": false, "GPG_KEY": false, "KEYBOARD": false,
		"AWS_WEB_IDENTITY_TOKEN_FILE": false, "TOKEN_URL": false, "SANDBOXER_ID": false, "": false, "_": false, "SSH_AUTH_SOCK": false,
	} {
		if NamesSecret(name) != want {
			t.Errorf("%q: %v", name, !want)
		}
	}
}

func TestWhatLooksLikeACredential(t *testing.T) {
	for text, want := range map[string]string{
		githubToken: "a GitHub token", "token=" + githubToken + "\n": "a GitHub token", awsKey: "an AWS access key", privateKey: "a private key",
		webToken: "a JSON web token", "Bearer " + webToken: "a JSON web token", passwordURL: "an address with a password",
		"": "", "ghp_short": "", "X" + awsKey: "", "https://ada@example.com/": "", "https://example.com/a:b@c": "", "https://x:$PASSWORD@example.com": "",
		"-----BEGIN PUBLIC KEY-----": "", "eyJhbGciOiJIUzI1NiJ9": "", "task-force and risk-free": "",
	} {
		kind, ok := LooksSecret(text)
		if kind != want || ok != (want != "") {
			t.Errorf("%q looks like %q", text, kind)
		}
	}
}

func TestWhichArgumentIsACredential(t *testing.T) {
	for _, c := range []struct {
		args []string
		want int
	}{
		{[]string{"x", "--token=abc"}, 1}, {[]string{"x", "--password", "abc"}, 2}, {[]string{"x", githubToken}, 1}, {[]string{"env", "API_KEY=abc", "x"}, 1},
		{[]string{"x", "--token-file=/run/secrets/T"}, -1}, {[]string{"x", "--password", "--verbose"}, -1}, {[]string{"x", "--token"}, -1},
		{[]string{"sh", "-c", "test $TOKEN = x"}, -1}, {[]string{"x", "--token=$TOKEN"}, -1}, {nil, -1},
	} {
		index, why, ok := Arguments(c.args)
		if ok != (c.want >= 0) || ok && index != c.want {
			t.Errorf("%q: %d, %q, %v", c.args, index, why, ok)
		}
		for _, arg := range c.args {
			if ok && arg != "" && strings.Contains(why, arg) {
				t.Errorf("%q: the reason %q holds an argument", c.args, why)
			}
		}
	}
}

func TestWhatAProfileMustNotPlace(t *testing.T) {
	for name, want := range map[string]bool{
		"/root/.aws/credentials": true, "/home/ada/.ssh/id_ed25519": false, "/home/ada/.git-credentials": true, "/.aws/credentials": true,
		"/etc/kubernetes/admin.conf": false, "/srv/app/config.json": false, "/root/.netrc": false, "/credentials": false,
	} {
		if HomeFile(name, []byte("something")) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
	if !HomeFile("/home/ada/.ssh/id_ed25519", []byte(privateKey)) || !HomeFile("/root/.netrc", []byte("machine x password y")) || HomeFile("/root/.aws/credentials", []byte(" \n")) {
		t.Error("what a file holds does not decide")
	}
}

func TestWhatIsMountedBelongsToOneCheck(t *testing.T) {
	for name, want := range map[string]sdk.IsolationCheck{
		"/var/run/docker.sock": sdk.CheckEngine, "/run/user/1000/podman/podman.sock": sdk.CheckEngine,
		"/tmp/ssh-XYZ/agent.7": sdk.CheckAgents, "/run/user/1000/gnupg/S.gpg-agent.ssh": sdk.CheckAgents,
		"/var/run/secrets/kubernetes.io/serviceaccount": sdk.CheckTokens, "/run/secrets/T": sdk.CheckTokens,
		"/": sdk.CheckMounts, "/home/ada": sdk.CheckMounts, "": sdk.CheckMounts,
	} {
		if got := Place(name); got != want {
			t.Errorf("%q: %s", name, got)
		}
	}
}

// A failure stands whatever else is noted, and what is not known is never
// turned into passed.
func TestFindingsOnlyGetWorse(t *testing.T) {
	f := New(sdk.SideInside)
	f.Passed(sdk.CheckMounts, "one")
	f.Unknown(sdk.CheckMounts, "two")
	f.Passed(sdk.CheckMounts, "three")
	f.Failed(sdk.CheckMounts, "four")
	f.Unknown(sdk.CheckMounts, "five")
	f.Unknown(sdk.CheckAgents, "line\nfeed \x1b[31m"+strings.Repeat("x", 2*MaxLine))
	for range MaxEvidence + 3 {
		f.Failed(sdk.CheckTokens, "a token")
	}
	got := f.List()
	if len(got) != 3 || got[0].Verdict != sdk.VerdictFailed || !slices.Equal(got[0].Evidence, []string{"four"}) {
		t.Errorf("%+v", got)
	}
	if line := got[1].Evidence[0]; strings.ContainsAny(line, "\n\x1b") || len(line) > MaxLine+len("…") {
		t.Errorf("%q", line)
	}
	if last := got[2].Evidence[MaxEvidence]; last != "and 3 more" {
		t.Errorf("%q", last)
	}
}

func TestAReportArrivesAsItWasGiven(t *testing.T) {
	given := []sdk.Finding{
		{Check: sdk.CheckMounts, Side: sdk.SideInside, Verdict: sdk.VerdictFailed, Evidence: []string{`a "quoted" one`, "second"}},
		{Check: sdk.CheckAgents, Side: sdk.SideInside, Verdict: sdk.VerdictUnknown, Evidence: []string{}},
	}
	var b bytes.Buffer
	if err := WriteReport(&b, given); err != nil {
		t.Fatal(err)
	}
	whole := b.String()
	got, err := ReadReport(strings.NewReader(whole))
	if err != nil || !reflect.DeepEqual(got, given) {
		t.Errorf("%+v, %v", got, err)
	}
	for cut := range len(whole) {
		if _, err := ReadReport(strings.NewReader(whole[:cut])); err == nil {
			t.Fatalf("the first %d bytes of %q were taken for a report", cut, whole)
		}
	}
	for name, text := range map[string]string{
		"twice the same": "mounts passed\nmounts passed\nend\n", "an unknown check": "luck passed\nend\n", "an unknown verdict": "mounts fine\nend\n",
		"no quotes": "mounts passed x\nend\n", "something after": "mounts passed\nend\nmounts passed\n", "loose": `mounts passed "a"x` + "\nend\n",
		"too large": strings.Repeat(" ", MaxReport) + "end\n", "too much evidence": "mounts passed" + strings.Repeat(` "a"`, MaxEvidence+2) + "\nend\n",
	} {
		if got, err := ReadReport(strings.NewReader(text)); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestAnExpectationArrivesAsItWasGiven(t *testing.T) {
	given := Expect{Canary: "C", First: "/init", Mounts: []string{"/data", "/a=b"}, Offline: true}
	if got, err := ParseExpect(given.Args()); err != nil || !reflect.DeepEqual(got, given) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, args := range [][]string{{"luck=1"}, {"offline=maybe"}} {
		if _, err := ParseExpect(args); err == nil {
			t.Errorf("%q was taken", args)
		}
	}
}

// FuzzReport holds the reader of what comes out of a sandbox to its contract:
// what it takes is bounded, printable, and can be written and read again.
func FuzzReport(f *testing.F) {
	f.Add([]byte("end\n"))
	f.Add([]byte("mounts failed \"something is mounted at \\\"/x\\\"\"\nend\n"))
	f.Add([]byte("mounts passed\nmounts passed\nend\n"))
	f.Add([]byte("agents unknown \"\\x1b[31m\\n\"\nend\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		findings, err := ReadReport(bytes.NewReader(content))
		if err != nil {
			return
		}
		for _, found := range findings {
			if len(found.Check.Sides()) == 0 || !found.Verdict.Valid() || len(found.Evidence) > MaxEvidence+1 {
				t.Errorf("accepted %+v", found)
			}
			for _, line := range found.Evidence {
				if len(line) > MaxLine+len("…")+3 || strings.ContainsAny(line, "\n\r\x1b") {
					t.Errorf("accepted the line %q", line)
				}
			}
		}
		var again bytes.Buffer
		if err := WriteReport(&again, findings); err != nil {
			t.Fatal(err)
		}
		if second, err := ReadReport(&again); err != nil || !reflect.DeepEqual(second, findings) {
			t.Errorf("read again: %+v, %v", second, err)
		}
	})
}
