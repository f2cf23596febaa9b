// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package config

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config/fault"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/config/plainhcl"
	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
)

// maxFile bounds a configuration file, in bytes.
const maxFile = 1 << 20

// ReadFile reads one configuration file. In a file that is not trusted, what
// decides which program is executed is a fault.
func ReadFile(file string, trusted bool) (Config, error) {
	handle, err := os.Open(file)
	if err != nil {
		return Config{}, err
	}
	defer handle.Close()
	content, err := io.ReadAll(io.LimitReader(handle, maxFile+1))
	if err != nil {
		return Config{}, err
	}
	if len(content) > maxFile {
		return Config{}, fault.Faults{{File: file, Message: fmt.Sprintf("larger than %d MiB", maxFile>>20)}}
	}
	return Parse(file, content, trusted)
}

// Parse reads the text of a configuration file, whose name is only for
// messages and for the directory that relative paths are relative to.
func Parse(file string, content []byte, trusted bool) (Config, error) {
	body, faults := plainhcl.Parse(file, content, plainhcl.Options{Calls: true})
	if len(faults) > 0 {
		return Config{}, faults.Err()
	}
	d := decoder{file: file, base: filepath.Dir(file), trusted: trusted}
	config := d.body(body)
	return config, d.faults.Err()
}

// decoder turns the syntax of one file into a configuration and collects
// every fault on the way.
type decoder struct {
	file    string
	base    string
	trusted bool
	faults  fault.Faults
}

// functions are those that the provider block of the documentation uses.
var functions = &hcl.EvalContext{Functions: map[string]function.Function{"jsonencode": stdlib.JSONEncodeFunc}}

func (d *decoder) add(at hcl.Range, path, format string, args ...any) {
	d.faults = append(d.faults, fault.Fault{
		File: d.file, Line: at.Start.Line, Column: at.Start.Column, Path: path, Message: fmt.Sprintf(format, args...),
	})
}

func (d *decoder) body(body *hclsyntax.Body) Config {
	var config Config
	for _, block := range body.Blocks {
		d.add(block.TypeRange, block.Type, "a block is not wanted here: write %s = { … }", block.Type)
	}
	schema := map[string]Attribute{}
	for _, attribute := range Attributes() {
		schema[attribute.Name] = attribute
	}
	for _, name := range slices.Sorted(maps.Keys(body.Attributes)) {
		syntax := body.Attributes[name]
		attribute, known := schema[name]
		if !known {
			d.add(syntax.NameRange, name, "no such attribute%s", sandbox.DidYouMean(name, slices.Collect(maps.Keys(schema))))
			continue
		}
		if !d.allowed(syntax.NameRange, name, attribute) {
			continue
		}
		value, diags := syntax.Expr.Value(functions)
		if diags.HasErrors() {
			d.faults = append(d.faults, plainhcl.Faults(d.file, diags)...)
			continue
		}
		if value.IsNull() {
			continue
		}
		d.attribute(&config, attribute, syntax.Expr, value)
	}
	return config
}

// allowed refuses in a checkout what decides which program is executed, how
// much may be spent, or where a credential goes.
func (d *decoder) allowed(at hcl.Range, path string, attribute Attribute) bool {
	what := "which program is executed"
	switch {
	case attribute.SpendsMoney:
		what = "how much may be spent"
	case attribute.SendsCredential:
		what = "which credential is used, and where it is sent"
	}
	if d.trusted || !attribute.RunsProgram && !attribute.SpendsMoney && !attribute.SendsCredential {
		return true
	}
	d.add(at, path, "this decides %s, so it does not count from a file in the working directory: "+
		"set it in the user's or the machine's %s, in the provider block, or name this file with --config", what, FileName)
	return false
}

func (d *decoder) attribute(config *Config, attribute Attribute, expr hclsyntax.Expression, value cty.Value) {
	at := expr.Range()
	switch attribute.Type {
	case TypeString, TypeDuration:
		text, ok := d.text(at, attribute.Name, value)
		if !ok {
			return
		}
		if err := config.setString(attribute.Name, text, d.base); err != nil {
			d.add(at, attribute.Name, "%s", err)
		}
	case TypeNumber, TypeMoney:
		if value.Type() != cty.Number || !value.IsKnown() {
			d.add(at, attribute.Name, "a number is wanted, this is %s", value.Type().FriendlyName())
			return
		}
		if err := config.setString(attribute.Name, value.AsBigFloat().Text('f', -1), d.base); err != nil {
			d.add(at, attribute.Name, "%s", err)
		}
	case TypeStrings:
		texts, ok := d.texts(at, attribute.Name, value)
		if !ok {
			return
		}
		if err := config.setStrings(attribute.Name, texts, d.base); err != nil {
			d.add(at, attribute.Name, "%s", err)
		}
	case TypeExtension:
		extension, _ := extensionOf(attribute.Name)
		if raw, ok := d.extension(at, attribute.Name, value); ok {
			d.put(config, at, attribute.Name, Backend{Extension: extension, Config: raw})
		}
	case TypePrices:
		d.prices(config, at, value)
	case TypeBackends:
		d.backends(config, expr, value)
	}
}

func (d *decoder) put(config *Config, at hcl.Range, name string, backend Backend) {
	if _, twice := config.Backends[name]; twice {
		d.add(at, name, "a backend of this name is configured twice")
		return
	}
	if err := backend.validate(name); err != nil {
		d.add(at, "", "%s", err)
		return
	}
	if config.Backends == nil {
		config.Backends = map[string]Backend{}
	}
	config.Backends[name] = backend
}

func (d *decoder) text(at hcl.Range, path string, value cty.Value) (string, bool) {
	if value.Type() != cty.String || value.IsNull() || !value.IsKnown() {
		d.add(at, path, "a string is wanted, this is %s", value.Type().FriendlyName())
		return "", false
	}
	if value.AsString() == "" {
		d.add(at, path, "an empty string is not wanted: leave the attribute out")
		return "", false
	}
	return value.AsString(), true
}

func (d *decoder) texts(at hcl.Range, path string, value cty.Value) ([]string, bool) {
	if !value.Type().IsTupleType() && !value.Type().IsListType() && !value.Type().IsSetType() {
		d.add(at, path, "a list of strings is wanted, this is %s", value.Type().FriendlyName())
		return nil, false
	}
	texts := []string{}
	for i, element := range value.AsValueSlice() {
		text, ok := d.text(at, fmt.Sprintf("%s[%d]", path, i), element)
		if !ok {
			return nil, false
		}
		texts = append(texts, text)
	}
	return texts, true
}

// extension returns the configuration of an extension as JSON. Its keys are
// the extension's own; it checks them when it is configured.
func (d *decoder) extension(at hcl.Range, path string, value cty.Value) (json.RawMessage, bool) {
	if !value.Type().IsObjectType() && !value.Type().IsMapType() {
		d.add(at, path, "an object is wanted, this is %s", value.Type().FriendlyName())
		return nil, false
	}
	raw, err := ctyjson.Marshal(dropNulls(value), dropNulls(value).Type())
	if err != nil {
		d.add(at, path, "%s", err)
		return nil, false
	}
	return raw, d.configAllowed(at, path, raw)
}

// configAllowed refuses in a checkout what of an extension's configuration
// decides which program is executed: its state directory, where the embedded
// backend keeps the programs that drive its sandboxes, and the commands that
// print the passphrase of an SSH key or the key of a cloud. Where a cloud's key
// comes from and where it is sent is refused there as well, and which of a
// cloud's own secrets its sandboxes have.
func (d *decoder) configAllowed(at hcl.Range, path string, raw json.RawMessage) bool {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(raw, &object); err != nil {
		d.add(at, path, "not a JSON object")
		return false
	}
	if _, found := object["state_dir"]; found {
		return d.allowed(at, path+".state_dir", Attribute{RunsProgram: true})
	}
	if _, found := object["api_key_command"]; found {
		return d.allowed(at, path+".api_key_command", Attribute{RunsProgram: true})
	}
	for _, name := range []string{"api_key_file", "api_url", "domain", "sandbox_url", "server_url", "config_file", "secrets"} {
		if _, found := object[name]; found {
			return d.allowed(at, path+"."+name, Attribute{SendsCredential: true})
		}
	}
	var ssh map[string]json.RawMessage
	if json.Unmarshal(object["ssh"], &ssh) == nil {
		if _, found := ssh["passphrase_command"]; found {
			return d.allowed(at, path+".ssh.passphrase_command", Attribute{RunsProgram: true})
		}
	}
	return true
}

// dropNulls leaves out what is null at the top: null means unset in HCL.
func dropNulls(value cty.Value) cty.Value {
	kept := map[string]cty.Value{}
	for name, element := range value.AsValueMap() {
		if !element.IsNull() {
			kept[name] = element
		}
	}
	return cty.ObjectVal(kept)
}
