// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package isolation

import (
	"path"
	"slices"
	"strings"
)

// place is a file in which programs keep credentials. One that only
// sometimes holds any is judged by what it says.
type place struct {
	path  string   // below a home directory, or absolute; a pattern
	marks []string // it holds one of these; none: being there is enough
}

// keptAtHome are the places below a home directory.
var keptAtHome = []place{
	{path: ".aws/credentials"}, {path: ".aws/sso/cache/*.json"}, {path: ".aws/cli/cache/*.json"},
	{path: ".azure/*.json", marks: []string{"accessToken", "refresh_token", "RefreshToken", "client_secret"}}, {path: ".azure/msal_token_cache.*"},
	{path: ".config/gcloud/application_default_credentials.json"}, {path: ".config/gcloud/credentials.db"}, {path: ".config/gcloud/access_tokens.db"},
	{path: ".config/gcloud/legacy_credentials/*/*"},
	{path: ".docker/config.json", marks: []string{`"auth"`, `"identitytoken"`, `"registrytoken"`, `"credsStore"`, `"credHelpers"`}},
	{path: ".config/containers/auth.json", marks: []string{`"auth"`, `"identitytoken"`}},
	{path: ".kube/config", marks: []string{"token", "client-key", "password", "exec"}}, {path: ".kube/cache/oidc-login/*"},
	{path: ".ssh/*", marks: []string{"PRIVATE KEY-----"}},
	{path: ".gnupg/private-keys-v1.d/*"}, {path: ".gnupg/secring.gpg"},
	{path: ".git-credentials"}, {path: ".config/git/credentials"}, {path: ".netrc", marks: []string{"password"}}, {path: "_netrc", marks: []string{"password"}},
	{path: ".npmrc", marks: []string{"_authToken", "_auth", "_password"}}, {path: ".yarnrc.yml", marks: []string{"npmAuthToken", "npmAuthIdent"}},
	{path: ".pypirc", marks: []string{"password"}}, {path: ".config/pypoetry/auth.toml"}, {path: ".gem/credentials"}, {path: ".cargo/credentials*"},
	{path: ".m2/settings*.xml", marks: []string{"<password>", "<privateKey>"}}, {path: ".gradle/gradle.properties", marks: []string{"assword", "oken", "ecret"}},
	{path: ".composer/auth.json"}, {path: ".config/composer/auth.json"}, {path: ".nuget/NuGet/NuGet.Config", marks: []string{"ClearTextPassword", `"Password"`}},
	{path: ".config/gh/hosts.yml", marks: []string{"oauth_token"}}, {path: ".config/glab-cli/config.yml", marks: []string{"token:"}}, {path: ".config/hub", marks: []string{"oauth_token"}},
	{path: ".terraform.d/credentials.tfrc.json"}, {path: ".terraformrc", marks: []string{"token"}}, {path: ".vault-token"}, {path: ".config/helm/registry/config.json", marks: []string{`"auth"`}},
	{path: ".pgpass"}, {path: ".my.cnf", marks: []string{"password"}}, {path: ".boto", marks: []string{"secret", "refresh_token"}}, {path: ".s3cfg", marks: []string{"secret_key"}},
	{path: ".config/rclone/rclone.conf", marks: []string{"pass", "secret", "token"}}, {path: ".huggingface/token"}, {path: ".cache/huggingface/token"},
	{path: ".claude/.credentials.json"}, {path: ".codex/auth.json"}, {path: ".config/op/config"}, {path: ".config/doctl/config.yaml", marks: []string{"access-token"}},
	{path: ".fly/config.yml", marks: []string{"access_token"}}, {path: ".modal.toml", marks: []string{"token_secret"}}, {path: ".password-store/*.gpg"},
	{path: ".env", marks: []string{"TOKEN=", "SECRET", "PASSWORD", "API_KEY", "ACCESS_KEY"}},
}

// keptElsewhere are the places that belong to nobody's home.
var keptElsewhere = []place{
	{path: "/.aws/credentials"}, {path: "/.docker/config.json", marks: []string{`"auth"`}}, {path: "/kaniko/.docker/config.json", marks: []string{`"auth"`}},
	{path: "/etc/kubernetes/*.conf", marks: []string{"client-key", "token"}}, {path: "/etc/kubernetes/pki/*.key"}, {path: "/etc/rancher/k3s/k3s.yaml"},
	{path: "/var/lib/kubelet/pki/*.pem"}, {path: "/var/lib/kubelet/kubeconfig"}, {path: "/etc/ssh/ssh_host_*_key", marks: []string{"PRIVATE KEY-----"}},
	{path: "/etc/npmrc", marks: []string{"_authToken", "_auth"}}, {path: "/usr/etc/npmrc", marks: []string{"_authToken", "_auth"}}, {path: "/usr/local/etc/npmrc", marks: []string{"_authToken", "_auth"}},
	{path: "/etc/netrc", marks: []string{"password"}}, {path: "/etc/git-credentials"}, {path: "/etc/boto.cfg", marks: []string{"secret"}},
	{path: "/etc/google/auth/application_default_credentials.json"}, {path: "/etc/pip.conf", marks: []string{"password"}},
}

// maxFile bounds how much of a file is judged, in bytes.
const maxFile = 256 << 10

// holds tells whether a file is one that a credential is in.
func (p place) holds(content []byte) bool {
	if len(content) > maxFile {
		content = content[:maxFile]
	}
	text := string(content)
	if strings.TrimSpace(text) == "" {
		return false
	}
	if len(p.marks) == 0 {
		return true
	}
	if _, looks := LooksSecret(text); looks {
		return true
	}
	return slices.ContainsFunc(p.marks, func(mark string) bool { return strings.Contains(text, mark) })
}

// HomeFile reports whether a file that a profile places at an absolute path
// is one that programs keep credentials in.
func HomeFile(name string, content []byte) bool {
	for _, p := range slices.Concat(keptAtHome, keptElsewhere) {
		pattern, depth := p.path, strings.Count(p.path, "/")+1
		subject := name
		if !path.IsAbs(pattern) {
			parts := strings.Split(strings.TrimPrefix(name, "/"), "/")
			if len(parts) <= depth {
				continue // a home directory is not the root
			}
			subject = strings.Join(parts[len(parts)-depth:], "/")
		}
		if matched, err := path.Match(pattern, subject); err == nil && matched && p.holds(content) {
			return true
		}
	}
	return false
}
