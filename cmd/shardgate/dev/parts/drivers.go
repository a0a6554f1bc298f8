package parts

import (
	"context"
	"embed"
	"fmt"
	"os"
	"path/filepath"
)

// Names of the folders of drivers: the version of the first of them, changed when any of them does.
const (
	nodeDriversFolder = "node-drivers-7.8.0-1"
	javaDriverFolder  = "java-driver-5.14.0-1"
	compressorsFolder = "pymongo-compressors-1.8.0"
)

// nodeFiles pins the Node driver, Mongoose and their compressors, with checksums that npm verifies.
//
//go:embed nodeclients/package.json nodeclients/package-lock.json
var nodeFiles embed.FS

// javaFiles pins the Java driver and its compressors.
//
//go:embed java/pom.xml
var javaFiles embed.FS

// mavenCopy is the plugin that copies what javaFiles names.
const mavenCopy = "org.apache.maven.plugins:maven-dependency-plugin:3.11.0:copy-dependencies"

// jarSums are the SHA-256 sums of the Java driver's files.
var jarSums = map[string]string{
	"bson-5.14.0.jar":                "6299c18ad698681440f17cf86172dfab169530082959fd9949244982394ea99d",
	"bson-record-codec-5.14.0.jar":   "0c090422fba1f9b463cae32c88f4161f4dac5de9cd7006e490ebf7ffd36f8a84",
	"mongodb-driver-core-5.14.0.jar": "ebd32361a9122f7e49950c3854a00cd4f12027d3038fd6957634a968d241b510",
	"mongodb-driver-sync-5.14.0.jar": "15c75bd17cbc38d7d5edcc03dbd47666087159b8737ceeb045a36345e533f5d6",
	"snappy-java-1.1.10.12.jar":      "1c03ce77b3f2e926c25a952612e372404d80bc88c6c8052bede964804fabd732",
	"zstd-jni-1.5.7-28.jar":          "95506ee277e830852658b65713b714262a6171121c7e45f09300eb109f44a038",
}

// compressorPins are the wheels of PyMongo's compressors for CPython 3.11 to 3.14 on Linux.
const compressorPins = `python-snappy==0.7.3 --hash=sha256:074c0636cfcd97e7251330f428064050ac81a52c62ed884fc2ddebbb60ed7f50
cramjam==2.14.0 \
 --hash=sha256:401bf7e11cf3775ee4af0fb487027adcbee61f68bbd1944ae9f6fcafb8b160fc \
 --hash=sha256:d42ed4ab609a46f407fa647c9f3b73473113c848ec007825b6ee25183033323b \
 --hash=sha256:e1d752b565818735410b577c219be003d6a5b8ac9a2b7989010940d294a2333e \
 --hash=sha256:5f466ca401b7051cda37206c284fedd1ee20e1194fb7af41092aad96e16c75d6
`

// zstdPins are those of one that CPython has had itself since 3.14.
const zstdPins = `backports.zstd==1.8.0 \
 --hash=sha256:9c7fe40a58dbe1fd358e0ceb5b6b3f50a9b328f8fff42dcb3bdaeb9a022c2506 \
 --hash=sha256:f9e9aa28a44db1897fb637f037175566f3b75890d4bae6cae7ba34f1df1e0804 \
 --hash=sha256:44a9004f9e809ea56910d326d21946650369db59eb86edc0c76840f21530704c
`

// NodeDrivers returns a folder for NODE_PATH with the pinned Node driver and Mongoose.
func (f *Finder) NodeDrivers(ctx context.Context) (string, error) {
	const hint = "install Node 20 or newer with npm"

	if _, err := output(ctx, "node", "--version"); err != nil {
		return "", &MissingError{Part: "Node driver", Why: "node does not run", Hint: hint, Err: err}
	}

	dir, err := ensure(ctx, f.dir, nodeDriversFolder, func(ctx context.Context, dir string) error {
		f.progress("fetching the Node driver and Mongoose (npm)")

		for _, name := range []string{"package.json", "package-lock.json"} {
			text, err := nodeFiles.ReadFile("nodeclients/" + name)
			if err != nil {
				return err
			}

			if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
				return err
			}
		}

		// The driver asks for a newer zstd, which fetches its program from elsewhere; this one is whole.
		return fetch(ctx, dir, nil, "npm", "ci", "--ignore-scripts", "--legacy-peer-deps", "--no-audit", "--no-fund")
	})
	if err != nil {
		return "", &MissingError{Part: "Node driver", Why: "fetching it by npm failed", Hint: hint, Err: err}
	}

	return filepath.Join(dir, "node_modules"), nil
}

// PyMongoCompressors returns a folder for PYTHONPATH that holds what the pinned PyMongo compresses with.
func (f *Finder) PyMongoCompressors(ctx context.Context) (string, error) {
	const hint = "install CPython 3.11 to 3.14 with pip (Debian: python3-pip)"

	tag, err := output(ctx, "python3", "-c", "import sys; print('cp%d%d' % sys.version_info[:2])")
	if err != nil {
		return "", &MissingError{Part: "PyMongo's compressors", Why: "python3 does not run", Hint: hint, Err: err}
	}

	pins := compressorPins
	if tag <= "cp313" {
		pins += zstdPins
	}

	dir, err := ensure(ctx, f.dir, compressorsFolder+"-"+tag, func(ctx context.Context, dir string) error {
		f.progress("fetching PyMongo's compressors (pip)")
		return pip(ctx, dir, pins, "install", "--target", filepath.Join(dir, "site"))
	})
	if err != nil {
		return "", &MissingError{Part: "PyMongo's compressors", Why: "fetching them by pip for " + tag + " failed", Hint: hint, Err: err}
	}

	return filepath.Join(dir, "site"), nil
}

// JavaDriver returns the folder of the pinned Java driver's jars; it needs Maven and a JDK of version 17 or newer.
func (f *Finder) JavaDriver(ctx context.Context) (string, error) {
	const hint = "install a JDK of version 17 or newer and Maven (Debian: openjdk-17-jdk-headless maven)"

	if _, err := output(ctx, "javac", "-version"); err != nil {
		return "", &MissingError{Part: "Java driver", Why: "javac does not run", Hint: hint, Err: err}
	}

	dir, err := ensure(ctx, f.dir, javaDriverFolder, func(ctx context.Context, dir string) error {
		f.progress("fetching the Java driver (Maven)")

		pom, err := javaFiles.ReadFile("java/pom.xml")
		if err != nil {
			return err
		}

		if err := os.WriteFile(filepath.Join(dir, "pom.xml"), pom, 0o644); err != nil {
			return err
		}

		if err := fetch(ctx, dir, nil, "mvn", "-q", "-B", mavenCopy, "-DoutputDirectory=lib"); err != nil {
			return err
		}

		return checkJars(filepath.Join(dir, "lib"))
	})
	if err != nil {
		return "", &MissingError{Part: "Java driver", Why: "fetching it by Maven failed", Hint: hint, Err: err}
	}

	return filepath.Join(dir, "lib"), nil
}

// checkJars reports an error unless a folder holds the jars of jarSums, and no others.
func checkJars(dir string) error {
	there, err := os.ReadDir(dir)
	if err != nil {
		return err
	}

	for _, file := range there {
		want, pinned := jarSums[file.Name()]
		if !pinned {
			return fmt.Errorf("%s is not pinned", file.Name())
		}

		if err := checkSum(filepath.Join(dir, file.Name()), want); err != nil {
			return err
		}
	}

	if len(there) != len(jarSums) {
		return fmt.Errorf("%d files, %d are pinned", len(there), len(jarSums))
	}

	return nil
}
