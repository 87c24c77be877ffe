"""A bucket as tests see it: behind lbrx's back, without the proxy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass
class Bucket:
    client: Any
    name: str

    @property
    def url(self) -> str:
        return f"s3://{self.name}"

    def put(self, key: str, data: bytes) -> str:
        self.client.put_object(Bucket=self.name, Key=key, Body=data, ACL="public-read")
        return f"{self.url}/{key}"

    def put_directory(self, key: str, directory: Path) -> str:
        for file in sorted(directory.iterdir()):
            self.put(f"{key}/{file.name}", file.read_bytes())
        return f"{self.url}/{key}"

    def contents(self, key: str) -> dict[str, bytes]:
        """Every object below a key, by what stands after it."""
        listed = self.client.list_objects_v2(Bucket=self.name, Prefix=f"{key}/").get("Contents", [])
        found = {}
        for entry in listed:
            body = self.client.get_object(Bucket=self.name, Key=entry["Key"])["Body"].read()
            found[entry["Key"].removeprefix(f"{key}/")] = body
        return found

    def unfinished_uploads(self) -> list[str]:
        return [upload["Key"] for upload in self.client.list_multipart_uploads(Bucket=self.name).get("Uploads", [])]
