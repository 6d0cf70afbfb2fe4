// The story as plain text.

import { value } from "../builds";
import { tell } from "../notices";
import { copy, save } from "../parts/saving";
import type { Story } from "../wire";
import { told } from "./told";

export function storyText(story: Story): string {
  const lines = [story.title, story.subtitle].filter(Boolean);
  for (const section of story.sections) {
    lines.push("", section.head);
    for (const sentence of section.sentences) {
      lines.push("  ".repeat(sentence.level + 1) + sentence.parts.map((part) => part.text).join(""));
    }
  }
  return `${lines.join("\n")}\n`;
}

function current(): Story | null {
  const now = told.peek();
  return now && value(now.story);
}

export function copyStory(): void {
  const story = current();
  if (story) void copy(storyText(story), "The story");
  else tell("Choose something first: a layer, a kernel or a line");
}

export function saveStory(): void {
  const story = current();
  if (story) save(`story-${story.title}.txt`, storyText(story));
  else tell("Choose something first: a layer, a kernel or a line");
}
