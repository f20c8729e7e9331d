"""Map the repository's top-level folders onto the import package `trireme`."""

from setuptools import find_packages, setup

ROOTS = {
    "trireme": "engine",
    "trireme.schema": "schema",
    "trireme.converters": "converters",
    "trireme.devices": "devices",
    "trireme.tools": "tools",
}

packages = [
    name
    for package, folder in ROOTS.items()
    for name in (package, *(f"{package}.{child}" for child in find_packages(folder)))
]

setup(
    packages=packages,
    package_dir=ROOTS,
    include_package_data=False,
    package_data={
        "trireme": ["py.typed"],
        "trireme.serving": ["page/*"],
        "trireme.schema": ["*.fbs"],
        "trireme.devices": ["npu/specs/*.toml", "described/socs/*.toml"],
        "trireme.tools": ["demo/*"],
    },
)
