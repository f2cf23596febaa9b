// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

// Command protogen writes the generated code of sdk/plugin, the Go form of the
// wire protocol. It needs Go alone; protoc-gen-go and protoc-gen-go-grpc are
// tools of this module, so go.mod says which versions run.
//
// Regenerate, from the root of the repository:
//
//	go -C tools/protogen run .
//
// With -check nothing is written; the exit code is 1 and the files are named
// when what is committed differs from what would be generated.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/bufbuild/protocompile"
	"github.com/bufbuild/protocompile/protoutil"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

const (
	protoDir  = "sdk/plugin/internal/pb" // below the root of the repository
	protoFile = "extension.proto"
)

func main() {
	check := flag.Bool("check", false, "write nothing; fail when a generated file differs")
	root := flag.String("root", "../..", "root of the repository")
	flag.Parse()
	if err := run(context.Background(), *root, *check); err != nil {
		fmt.Fprintln(os.Stderr, "protogen:", err)
		os.Exit(1)
	}
}

// run generates every file and writes it, or with check compares it.
func run(ctx context.Context, root string, check bool) error {
	files, err := generateProto(ctx, filepath.Join(root, protoDir))
	if err != nil {
		return err
	}
	var drift []error
	for path, want := range files {
		if !check {
			if err := os.WriteFile(path, want, 0o644); err != nil {
				return err
			}
			continue
		}
		have, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if !bytes.Equal(have, want) {
			drift = append(drift, fmt.Errorf("%s is not what is generated; run: go -C tools/protogen run .", path))
		}
	}
	return errors.Join(drift...)
}

// generateProto compiles the protocol and returns the generated files by path.
func generateProto(ctx context.Context, dir string) (map[string][]byte, error) {
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{dir}}),
		SourceInfoMode: protocompile.SourceInfoStandard, // comments become Go comments
	}
	compiled, err := compiler.Compile(ctx, protoFile)
	if err != nil {
		return nil, err
	}
	request := &pluginpb.CodeGeneratorRequest{
		FileToGenerate: []string{protoFile},
		Parameter:      proto.String("paths=source_relative"),
	}
	seen := map[string]bool{}
	for _, file := range compiled {
		request.ProtoFile = appendFile(request.ProtoFile, seen, file)
	}
	files := map[string][]byte{}
	for _, tool := range []string{"protoc-gen-go", "protoc-gen-go-grpc"} {
		response, err := generate(ctx, tool, request)
		if err != nil {
			return nil, err
		}
		for _, file := range response.File {
			files[filepath.Join(dir, file.GetName())] = []byte(file.GetContent())
		}
	}
	return files, nil
}

// appendFile appends a file after everything that it imports, which is the
// order that generators rely on.
func appendFile(list []*descriptorpb.FileDescriptorProto, seen map[string]bool, file protoreflect.FileDescriptor) []*descriptorpb.FileDescriptorProto {
	if seen[file.Path()] {
		return list
	}
	seen[file.Path()] = true
	imports := file.Imports()
	for i := range imports.Len() {
		list = appendFile(list, seen, imports.Get(i).FileDescriptor)
	}
	return append(list, protoutil.ProtoFromFileDescriptor(file))
}

// generate runs one generator, a tool of this module.
func generate(ctx context.Context, tool string, request *pluginpb.CodeGeneratorRequest) (*pluginpb.CodeGeneratorResponse, error) {
	input, err := proto.Marshal(request)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "go", "tool", tool)
	cmd.Stdin = bytes.NewReader(input)
	cmd.Stderr = os.Stderr
	output, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", tool, err)
	}
	response := new(pluginpb.CodeGeneratorResponse)
	if err := proto.Unmarshal(output, response); err != nil {
		return nil, fmt.Errorf("%s: %w", tool, err)
	}
	if response.Error != nil {
		return nil, fmt.Errorf("%s: %s", tool, response.GetError())
	}
	return response, nil
}
