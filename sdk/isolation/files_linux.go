// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package isolation

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// homeDirs are the home directories that there may be: those of the user
// database, and those that are there.
func (l *look) homeDirs() []string {
	homes := []string{"/root"}
	if home := l.env["HOME"]; filepath.IsAbs(home) {
		homes = append(homes, filepath.Clean(home))
	}
	if passwd, err := read("/etc/passwd"); err == nil {
		for line := range strings.Lines(string(passwd)) {
			if fields := strings.Split(strings.TrimSpace(line), ":"); len(fields) >= 7 && filepath.IsAbs(fields[5]) {
				homes = append(homes, filepath.Clean(fields[5]))
			}
		}
	}
	if names, err := list("/home"); err == nil {
		for _, name := range names {
			homes = append(homes, filepath.Join("/home", name))
		}
	}
	slices.Sort(homes)
	return slices.Compact(homes)
}

// homes looks for files that programs keep credentials in. What the
// sandbox's user may not read is no way to a credential.
func (l *look) homes() {
	const check = sdk.CheckFiles
	looked := 0
	judge := func(p place, pattern string) {
		names, err := filepath.Glob(pattern)
		if err != nil {
			return // the patterns are ours, and the directories' names are quoted
		}
		for _, name := range names {
			info, err := os.Stat(name)
			if err != nil || !info.Mode().IsRegular() {
				continue
			}
			content, err := read(name)
			switch {
			case errors.Is(err, fs.ErrPermission), errors.Is(err, fs.ErrNotExist):
			case err != nil:
				l.Unknown(check, Quote(name)+" is there and can't be read: "+why(err))
			default:
				looked++
				if p.holds(content) {
					l.Failed(check, Quote(name)+" is a file that credentials are kept in")
				}
			}
		}
	}
	homes := l.homeDirs()
	for _, home := range homes {
		for _, p := range keptAtHome {
			judge(p, filepath.Join(quoteMeta(home), p.path))
		}
	}
	for _, p := range keptElsewhere {
		judge(p, p.path)
	}
	l.Passed(check, strconv.Itoa(len(homes))+" home directories and "+strconv.Itoa(len(keptElsewhere))+" other places: "+
		strconv.Itoa(looked)+" files that could hold a credential, and none does")
}

// quoteMeta makes a directory's name a pattern for itself.
func quoteMeta(name string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(name)
}

// tokenVariables name files in which tokens lie.
var tokenVariables = []string{
	"AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AZURE_FEDERATED_TOKEN_FILE",
	"GOOGLE_APPLICATION_CREDENTIALS", "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE", "KUBECONFIG", "VAULT_TOKEN_FILE", "DOCKER_AUTH_CONFIG_FILE", "NETRC",
}

// mountedTokens are where orchestrators mount them.
var mountedTokens = []string{
	"/var/run/secrets/kubernetes.io/serviceaccount/token", "/var/run/secrets/eks.amazonaws.com/serviceaccount/token",
	"/var/run/secrets/pods.eks.amazonaws.com/serviceaccount/eks-pod-identity-token", "/var/run/secrets/azure/tokens/azure-identity-token",
	"/var/run/secrets/tokens/*", "/var/run/secrets/workload-spiffe-credentials/*", "/var/lib/waagent/*.prv", "/run/credentials/*/*", "/etc/podinfo/*token*",
}

// tokens looks where tokens are mounted. In the directory of a sandbox's
// secrets nothing may lie but what its creator has put there.
func (l *look) tokens() {
	const check = sdk.CheckTokens
	seen := map[string]bool{} // /var/run is mostly a link to /run
	judge := func(name, what string) {
		real, err := filepath.EvalSymlinks(name)
		if err != nil || seen[real] || l.expect.Canary != "" && filepath.Base(real) == l.expect.Canary {
			return
		}
		seen[real] = true
		if info, err := os.Stat(real); err != nil || !info.Mode().IsRegular() {
			return
		}
		content, err := read(name)
		switch {
		case errors.Is(err, fs.ErrPermission), errors.Is(err, fs.ErrNotExist):
		case err != nil:
			l.Unknown(check, Quote(name)+" is there and can't be read: "+why(err))
		case len(content) > 0:
			l.Failed(check, Quote(name)+" "+what)
		}
	}
	for _, dir := range []string{SecretsDir, "/var" + SecretsDir} {
		left := maxEntries
		err := filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error {
			switch left--; {
			case left == 0:
				return errors.New("it holds too much")
			case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
				return nil
			case err != nil:
				return err
			case !entry.IsDir():
				judge(name, "lies where secrets are mounted, and the sandbox was made without it")
			}
			return nil
		})
		if err != nil {
			l.Unknown(check, dir+" can't be looked through: "+why(err))
		}
	}
	for _, pattern := range mountedTokens {
		names, _ := filepath.Glob(pattern) // the patterns are ours
		for _, name := range names {
			judge(name, "lies where tokens are mounted")
		}
	}
	for _, variable := range tokenVariables {
		for _, name := range filepath.SplitList(l.env[variable]) {
			judge(name, "is a file that the variable "+variable+" names")
		}
	}
	l.Passed(check, "nothing but the secret that the sandbox was made with lies in "+SecretsDir+" or where orchestrators mount tokens")
}
