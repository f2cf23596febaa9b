// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package modaltest

// The program that the vendor puts into each sandbox and that its clients move
// files with: one argument in JSON says what to do.

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"syscall"
)

const fsTools = "/__modal/.bin/modal-sandbox-fs-tools"

type fsPath struct {
	Path      string `json:"path"`
	Parents   bool   `json:"parents"`
	Recursive bool   `json:"recursive"`
}

type fsCommand struct {
	ReadFile, WriteFile, ListFiles, Stat, MakeDirectory, Remove, Watch *fsPath
}

// fsFailure is how the program says what went wrong.
type fsFailure struct {
	Kind    string `json:"error_kind"`
	Message string `json:"message"`
}

func (f fsFailure) Error() string { return f.Message }

// fsEntry is what is said of a file.
type fsEntry struct {
	Name         string  `json:"name"`
	Path         string  `json:"path"`
	Type         string  `json:"type"`
	Size         int64   `json:"size"`
	Mode         uint32  `json:"mode"`
	Permissions  string  `json:"permissions"`
	Owner        string  `json:"owner"`
	Group        string  `json:"group"`
	ModifiedTime float64 `json:"modified_time"`
	Target       *string `json:"symlink_target"`
}

// files does one thing with files, as a process that reads its input and
// writes its output.
func (sb *sandbox) files(p *process, input *io.PipeReader, args []string) {
	var command fsCommand
	err := errors.New("one argument in JSON is wanted")
	if len(args) == 1 {
		err = json.Unmarshal([]byte(args[0]), &command)
	}
	if err == nil {
		err = sb.fsDo(command, input, &p.stdout)
	}
	_ = input.CloseWithError(io.ErrClosedPipe) // nobody reads it any more
	code := int32(0)
	if err != nil {
		code = 1
		said, _ := json.Marshal(failureOf(err)) // strings always encode
		_, _ = p.stderr.Write(said)
	}
	p.finish(code, 0)
}

func failureOf(err error) fsFailure {
	var failure fsFailure
	switch {
	case errors.As(err, &failure):
		return failure
	case errors.Is(err, fs.ErrNotExist):
		failure.Kind = "NotFound"
	case errors.Is(err, syscall.ENOTDIR):
		failure.Kind = "NotDirectory"
	case errors.Is(err, syscall.EISDIR):
		failure.Kind = "IsDirectory"
	case errors.Is(err, syscall.ENOTEMPTY):
		failure.Kind = "DirectoryNotEmpty"
	case errors.Is(err, fs.ErrPermission):
		failure.Kind = "PermissionDenied"
	case errors.Is(err, fs.ErrExist):
		failure.Kind = "PathAlreadyExists"
	default:
		failure.Kind = "Io"
	}
	var at *fs.PathError
	failure.Message = err.Error()
	if errors.As(err, &at) {
		failure.Message = at.Err.Error() // the path is one of the machine
	}
	return failure
}

func (sb *sandbox) fsDo(command fsCommand, input io.Reader, out io.Writer) error {
	switch {
	case command.ReadFile != nil:
		inside, err := sb.jail.Inside(command.ReadFile.Path)
		if err != nil {
			return err
		}
		file, err := os.Open(inside)
		if err != nil {
			return err
		}
		defer file.Close()
		_, err = io.Copy(out, file)
		return err
	case command.WriteFile != nil:
		inside, err := sb.jail.Inside(command.WriteFile.Path)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(inside), 0o755)
		}
		if err != nil {
			return err
		}
		file, err := os.Create(inside)
		if err != nil {
			return err
		}
		_, err = io.Copy(file, input)
		return errors.Join(err, file.Close())
	case command.ListFiles != nil:
		inside, err := sb.jail.Inside(command.ListFiles.Path)
		if err != nil {
			return err
		}
		entries, err := os.ReadDir(inside)
		if err != nil {
			return err
		}
		all := []fsEntry{}
		for _, entry := range entries {
			if info, err := entry.Info(); err == nil {
				all = append(all, entryOf(path.Join(command.ListFiles.Path, entry.Name()), filepath.Join(inside, entry.Name()), info))
			}
		}
		return json.NewEncoder(out).Encode(all)
	case command.Stat != nil:
		// Of the link, not of what it leads to.
		dir, err := sb.jail.Inside(path.Dir(command.Stat.Path))
		if err != nil {
			return err
		}
		inside := filepath.Join(dir, path.Base(command.Stat.Path))
		info, err := os.Lstat(inside)
		if err != nil {
			return err
		}
		return json.NewEncoder(out).Encode(entryOf(command.Stat.Path, inside, info))
	case command.MakeDirectory != nil:
		inside, err := sb.jail.Inside(command.MakeDirectory.Path)
		if err != nil {
			return err
		}
		if command.MakeDirectory.Parents {
			return os.MkdirAll(inside, 0o755)
		}
		return os.Mkdir(inside, 0o755)
	case command.Remove != nil:
		dir, err := sb.jail.Inside(path.Dir(command.Remove.Path))
		if err != nil {
			return err
		}
		inside := filepath.Join(dir, path.Base(command.Remove.Path))
		if _, err := os.Lstat(inside); err != nil {
			return err
		}
		if command.Remove.Recursive {
			return os.RemoveAll(inside)
		}
		return os.Remove(inside)
	case command.Watch != nil:
		// Nothing is ever seen; it ends with its input.
		_, err := io.Copy(io.Discard, input)
		return err
	}
	return fsFailure{"NotSupported", "it does not know that command"}
}

func entryOf(shown, inside string, info fs.FileInfo) fsEntry {
	entry := fsEntry{
		Name: path.Base(shown), Path: shown, Type: "file", Size: info.Size(), Mode: uint32(info.Mode().Perm()),
		Permissions: strconv.FormatUint(uint64(info.Mode().Perm()), 8), Owner: "root", Group: "root", ModifiedTime: unixSeconds(info.ModTime()),
	}
	switch {
	case info.IsDir():
		entry.Type = "directory"
	case info.Mode()&fs.ModeSymlink != 0:
		entry.Type = "symlink"
		if target, err := os.Readlink(inside); err == nil {
			entry.Target = &target
		}
	}
	return entry
}
