// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Package toolbin builds the programs that tests and checks need and that no
// machine can be trusted to have: other Terraform command lines, the linter,
// the documentation generator. Each is a `tool` of a small module of its own
// under tools/, pinned by its go.sum, and is built from Go modules into
// .cache/bin. What was built for the same sources is not built again.
package toolbin

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/tools/internal/repo"
)

// Tool is one program and where it comes from.
type Tool struct {
	Name    string // of the binary in .cache/bin
	Dir     string // its module, relative to the root
	Package string // its main package
	Ldflags string
	Why     string // what it is for, printed when it is built
}

// All is every tool there is.
var All = []Tool{
	{
		Name:    "terraform-1.8",
		Dir:     "tools/terraform-1.8",
		Package: "github.com/hashicorp/terraform",
		Ldflags: "-s -w -X github.com/hashicorp/terraform/version.dev=no",
		Why:     "Terraform 1.8.5, the oldest release that the acceptance suite runs on (about six CPU minutes when nothing is cached)",
	},
	{
		Name:    "tofu",
		Dir:     "tools/opentofu",
		Package: "github.com/opentofu/opentofu/cmd/tofu",
		Ldflags: "-s -w -X github.com/opentofu/opentofu/version.dev=no",
		Why:     "OpenTofu 1.12.6, the other command line that the acceptance suite runs on (about ten CPU minutes when nothing is cached)",
	},
	{
		Name:    "golangci-lint",
		Dir:     "tools/lint",
		Package: "github.com/golangci/golangci-lint/v2/cmd/golangci-lint",
		Ldflags: "-s -w",
		Why:     "golangci-lint, for `make lint`",
	},
	{
		Name:    "tfplugindocs",
		Dir:     "tools/tfplugindocs",
		Package: "github.com/hashicorp/terraform-plugin-docs/cmd/tfplugindocs",
		Ldflags: "-s -w",
		Why:     "tfplugindocs, which renders docs/ from schemas, templates/ and examples/",
	},
}

// Find returns the tool of a name.
func Find(name string) (Tool, error) {
	for _, tool := range All {
		if tool.Name == name {
			return tool, nil
		}
	}
	return Tool{}, fmt.Errorf("no tool is called %q", name)
}

// Ensure returns the path of a tool's binary and builds it first unless it
// was already built from the same sources. It says on log what it does.
func Ensure(ctx context.Context, root string, tool Tool, log func(string)) (string, error) {
	key, err := key(ctx, root, tool)
	if err != nil {
		return "", fmt.Errorf("%s: %w", tool.Name, err)
	}
	path := filepath.Join(root, ".cache", "bin", tool.Name)
	mark := path + ".key"
	if built, err := os.ReadFile(mark); err == nil && string(built) == key {
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	log("building " + tool.Name + ": " + tool.Why)
	begin := time.Now()
	partial := fmt.Sprintf("%s.%d.partial", path, os.Getpid())
	defer os.Remove(partial)
	cmd := repo.Command(ctx, filepath.Join(root, tool.Dir), "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", tool.Ldflags, "-o", partial, tool.Package)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+runtime.GOOS, "GOARCH="+runtime.GOARCH, "GOWORK=off")
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("build %s in %s: %w\n%s", tool.Name, tool.Dir, err, output.Bytes())
	}
	// The mark goes first out and last in: a binary without one is rebuilt.
	if err := os.Remove(mark); err != nil && !os.IsNotExist(err) {
		return "", err
	}
	if err := os.Rename(partial, path); err != nil {
		return "", err
	}
	if err := os.WriteFile(mark, []byte(key), 0o644); err != nil {
		return "", err
	}
	log(fmt.Sprintf("built %s in %.0f s", tool.Name, time.Since(begin).Seconds()))
	return path, nil
}

// key names the sources of a tool: its pinned modules, how it is linked and
// the Go release that compiles it.
func key(ctx context.Context, root string, tool Tool) (string, error) {
	version, err := repo.Output(ctx, filepath.Join(root, tool.Dir), "go", "env", "GOVERSION")
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	fmt.Fprintf(sum, "%s\n%s\n%s\n", version, tool.Package, tool.Ldflags)
	for _, name := range []string{"go.mod", "go.sum"} {
		data, err := os.ReadFile(filepath.Join(root, tool.Dir, name))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(sum, "%s %d\n", name, len(data))
		sum.Write(data)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
