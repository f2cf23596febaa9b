// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Command releasecheck installs a release the way a user does, before there is
// one. It builds the archives of this platform (tools/archives), signs their
// checksums with a throw-away key, serves them over HTTPS on loopback as a
// provider registry and as a network mirror, and installs from both with a
// real `terraform init`. It then makes sure that a release which was tampered
// with is refused.
//
//	go run ./tools/releasecheck
//
// Terraform checks signatures of what comes from a registry. From a mirror it
// checks hashes only, which the mirror itself names: there the signature is
// for whoever fills the mirror, and this program's own check stands in for
// them.
//
// Archives of other platforms are built and looked into by tools/archives;
// nothing installs them here.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/ProtonMail/go-crypto/openpgp"

	"github.com/sand-boxer/terraform-provider-sandboxer/tools/internal/repo"
	"github.com/sand-boxer/terraform-provider-sandboxer/tools/internal/tfrun"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	version := flag.String("version", repo.DevVersion, "version of the release")
	flag.Parse()
	if err := run(ctx, *version); err != nil {
		fmt.Fprintln(os.Stderr, "releasecheck:", err)
		os.Exit(1)
	}
}

func say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func run(ctx context.Context, version string) (err error) {
	root, err := repo.Root()
	if err != nil {
		return err
	}
	cli, err := tfrun.FindCLI(ctx, root, func(line string) { say("%s", line) })
	if err != nil {
		return err
	}
	scratch, err := os.MkdirTemp("", "sandboxer-release-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()

	dist := filepath.Join(scratch, "dist")
	build := repo.Command(ctx, root, "go", "run", "./tools/archives", "-out", dist, "-platform", runtime.GOOS+"/"+runtime.GOARCH, "-version", version)
	if output, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the archives: %w\n%s", err, output)
	}
	unsigned, err := readAssets(dist, version, runtime.GOOS, runtime.GOARCH)
	if err != nil {
		return err
	}
	key, err := newKey("publisher")
	if err != nil {
		return err
	}
	release, err := unsigned.signed(key)
	if err != nil {
		return err
	}
	if err := release.verify(key); err != nil {
		return err
	}
	say("release: names, manifest, checksums and signature are as the registries ask for")

	served, err := newServer()
	if err != nil {
		return err
	}
	defer served.Close()
	c := &checker{cli: cli, scratch: scratch, server: served, release: release, key: key}
	if c.h1, err = dirHash(release.files[release.archive()]); err != nil {
		return err
	}
	c.zh = zipHash(release.files[release.archive()])
	for _, check := range []func(context.Context) error{c.installs, c.refusesFromRegistry, c.refusesFromMirror, c.refusesBySignature} {
		if err := check(ctx); err != nil {
			return err
		}
	}
	return nil
}

// checker holds one good release and what it is served and installed with.
type checker struct {
	cli     string
	scratch string
	server  *server
	release *assets
	key     *openpgp.Entity
	h1, zh  string
	count   int
}

// The two ways that Terraform is told to install by.
const (
	fromRegistry = "registry"
	fromMirror   = "mirror"
)

// workspace makes a directory with a configuration that asks for the release,
// and that trusts this run's authority and knows no other source.
func (c *checker) workspace(from string) (*tfrun.Workspace, error) {
	c.count++
	scratch := filepath.Join(c.scratch, fmt.Sprintf("%s-%d", from, c.count))
	dir := filepath.Join(scratch, "work")
	empty := filepath.Join(scratch, "no-certificates")
	for _, d := range []string{dir, empty} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, err
		}
	}
	rc := "disable_checkpoint = true\n"
	if from == fromMirror {
		rc += fmt.Sprintf("provider_installation {\n  network_mirror {\n    url = %q\n  }\n}\n", c.server.URL+mirrorRoot)
	} else {
		rc += fmt.Sprintf("host %q {\n  services = { \"providers.v1\" = %q }\n}\nprovider_installation {\n  direct {}\n}\n", host, c.server.URL+registryRoot)
	}
	config := fmt.Sprintf(`terraform {
  required_providers {
    sandboxer = {
      source  = %q
      version = %q
    }
  }
}

provider "sandboxer" {}

data "sandboxer_backend" "local" {
  name = "local"
}

output "version" {
  value = data.sandboxer_backend.local.version
}
`, source, c.release.version)
	files := map[string]string{
		filepath.Join(scratch, "terraform.rc"): rc,
		filepath.Join(scratch, "ca.pem"):       string(c.server.ca),
		filepath.Join(dir, "main.tf"):          config,
	}
	for path, content := range files {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			return nil, err
		}
	}
	return &tfrun.Workspace{CLI: c.cli, Dir: dir, Env: append(repo.CleanEnv(),
		"TF_CLI_CONFIG_FILE="+filepath.Join(scratch, "terraform.rc"),
		"TF_IN_AUTOMATION=1",
		"CHECKPOINT_DISABLE=1",
		"SSL_CERT_FILE="+filepath.Join(scratch, "ca.pem"),
		"SSL_CERT_DIR="+empty,
		"SANDBOXER_STATE_DIR="+filepath.Join(scratch, "state"),
		"XDG_CONFIG_HOME="+filepath.Join(scratch, "config"),
	)}, nil
}

// installs installs the good release both ways and uses it.
func (c *checker) installs(ctx context.Context) error {
	registry, err := c.server.registryPages(c.release, c.key)
	if err != nil {
		return err
	}
	mirror, err := mirrorPages(c.release, []string{c.zh, c.h1})
	if err != nil {
		return err
	}
	if err := c.discovers(registry); err != nil {
		return err
	}
	for from, pages := range map[string]map[string][]byte{fromRegistry: registry, fromMirror: mirror} {
		w, err := c.workspace(from)
		if err != nil {
			return err
		}
		c.server.serve(pages)
		output, err := w.Terraform(ctx, "init", "-no-color", "-input=false")
		if err != nil {
			return fmt.Errorf("install from the %s: %w", from, err)
		}
		if from == fromRegistry {
			if id := c.key.PrimaryKey.KeyIdString(); !strings.Contains(output, id) {
				return fmt.Errorf("install from the registry: Terraform does not say that the key %s signed the release:\n%s", id, output)
			}
			if path := assetsRoot + c.release.signature(); !c.server.asked(path) {
				return fmt.Errorf("install from the registry: Terraform did not fetch %s", path)
			}
		}
		if err := c.release.checkInstalled(c.installDir(w)); err != nil {
			return fmt.Errorf("install from the %s: %w", from, err)
		}
		lock, err := os.ReadFile(filepath.Join(w.Dir, ".terraform.lock.hcl"))
		if err != nil {
			return err
		}
		hashes := []string{c.h1}
		if from == fromRegistry {
			// Terraform writes zh: hashes only when a signature vouches for them.
			hashes = append(hashes, c.zh)
		}
		for _, hash := range hashes {
			if !strings.Contains(string(lock), `"`+hash+`"`) {
				return fmt.Errorf("install from the %s: the lock file lacks %s:\n%s", from, hash, lock)
			}
		}
		if err := c.uses(ctx, w); err != nil {
			return fmt.Errorf("installed from the %s: %w", from, err)
		}
		say("%s: installed with terraform init, hashes and files compared, provider and extension started", from)
	}
	return nil
}

// installDir is where Terraform unpacks the provider.
func (c *checker) installDir(w *tfrun.Workspace) string {
	return filepath.Join(w.Dir, ".terraform", "providers", filepath.FromSlash(source), c.release.version, c.release.os+"_"+c.release.arch)
}

// discovers asks the registry's own discovery document, which the CLI
// configuration goes around.
func (c *checker) discovers(pages map[string][]byte) error {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(c.server.ca) {
		return errors.New("the authority's certificate is not readable")
	}
	c.server.serve(pages)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}}
	defer client.CloseIdleConnections()
	answer, err := client.Get(c.server.URL + discovery)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(io.LimitReader(answer.Body, 1<<16))
	if err != nil {
		return err
	}
	var services map[string]string
	if err := json.Unmarshal(data, &services); err != nil {
		return fmt.Errorf("%s: %w", discovery, err)
	}
	if services["providers.v1"] != registryRoot {
		return fmt.Errorf("%s names %q for providers.v1, want %q", discovery, services["providers.v1"], registryRoot)
	}
	return nil
}

// uses starts what was installed: the provider by its schema, and where there
// is one the embedded backend by a question that only it can answer.
func (c *checker) uses(ctx context.Context, w *tfrun.Workspace) error {
	schema, err := w.Terraform(ctx, "providers", "schema", "-json")
	if err != nil {
		return err
	}
	if !strings.Contains(schema, `"sandboxer_sandbox"`) {
		return errors.New("the provider's schema has no sandboxer_sandbox")
	}
	if !slices.Contains(c.release.programs(), repo.ExtensionLocal.Name) {
		return nil
	}
	if _, err := w.Terraform(ctx, "apply", "-auto-approve", "-no-color", "-input=false"); err != nil {
		return err
	}
	version, err := w.Terraform(ctx, "output", "-raw", "version")
	if err != nil {
		return err
	}
	if version != c.release.version {
		return fmt.Errorf("the embedded backend that was started calls itself %q, want %q", version, c.release.version)
	}
	return nil
}
