// A story's sections: a heading with an icon, and sentences whose parts are links.

import { isIcon, Icon } from "../parts/Icon";
import { Prose } from "../parts/Prose";
import { RefLink } from "../parts/RefLink";
import type { Part, Section, Sentence } from "../wire";

export function Sections({ build, sections }: { readonly build: string; readonly sections: readonly Section[] }) {
  return (
    <ol class="sections">
      {sections.map((section, n) => (
        <li key={n} data-kind={section.kind}>
          <span class="section-icon">
            <Icon name={isIcon(section.kind) ? section.kind : "dot"} size={14} />
          </span>
          <h3>
            <RefLink build={build} to={section.ref}>{section.head}</RefLink>
          </h3>
          {section.sentences.map((sentence, m) => (
            <SentenceLine key={m} build={build} sentence={sentence} />
          ))}
        </li>
      ))}
    </ol>
  );
}

function SentenceLine({ build, sentence }: { readonly build: string; readonly sentence: Sentence }) {
  return (
    <p class="sentence" style={{ "--level": Math.min(4, sentence.level) }}>
      {sentence.parts.map((part, n) => (
        <PartText key={n} build={build} part={part} />
      ))}
    </p>
  );
}

function PartText({ build, part }: { readonly build: string; readonly part: Part }) {
  if (part.ref) return <RefLink build={build} to={part.ref} code={part.code}>{part.text}</RefLink>;
  return part.code ? <code>{part.text}</code> : <Prose text={part.text} />;
}
